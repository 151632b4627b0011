//! Checks of the Workspace: git, Pixir's state, Logs, instructions and free space.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde_json::json;

use super::home::{check_folders, check_free_space};
use super::{CheckStatus, DoctorCheck, or_passed};
use crate::agent::inspect;
use crate::agent::inspect::{SessionSummary, SummaryStatus};
use crate::base::error::{Kind, Report};
use crate::base::files::read_regular;
use crate::base::id::SessionId;
use crate::base::paths;
use crate::base::secret::Secrets;
use crate::model::prompt::{AgentsMd, AgentsMdSources};
use crate::record::log;
use crate::record::state_dir;
use crate::record::state_dir::{StateLocation, StateRoot};
use crate::settings::config::Config;

/// Checked Logs, newest first.
const CHECKED_LOGS: usize = 50;

/// Largest `.git` file or `.gitignore` that is read.
const LARGEST_TEXT: u64 = 64 << 10;

pub fn check_workspace(folder: &Path, config: &Config) -> Vec<DoctorCheck> {
    let state = state_dir::resolve_state(&config.home, folder);
    let mut checks = check_log_folder(&state);
    let listed = inspect::list_sessions(std::slice::from_ref(&state.root), CHECKED_LOGS);
    let whole = match listed.len() {
        0 => "no Logs yet".to_owned(),
        1 => "the one Log is whole".to_owned(),
        count => format!("the last {count} Logs are whole"),
    };
    checks.extend(or_passed(check_logs(&state.root, &listed), "logs", whole));
    checks.extend(or_passed(check_leftovers(&state.root), "leftovers", "none"));
    let repository = match find_dot_git(folder) {
        Some(_) => "HEAD is there, and Logs are not committed",
        None => "not a git repository",
    };
    checks.extend(or_passed(check_git(folder), "git", repository));
    checks.extend(check_folders(&paths::state_folder(folder)));
    checks.extend(check_instructions(folder, config));
    checks.push(check_free_space("workspace_disk", folder));
    checks
}

pub fn check_writable(id: &'static str, folder: &Path) -> DoctorCheck {
    let details = json!({ "path": folder.to_string_lossy() });
    match rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => DoctorCheck::new(
            id,
            CheckStatus::Passed,
            format!("{} can be written", folder.display()),
        )
        .with_details(details),
        Err(error) => DoctorCheck::warning_at(id, folder, format!("cannot be written: {error}"))
            .into_failure()
            .with_kind(Kind::WriteFailed)
            .with_next_action("make it writable for you, or name another directory with --cwd"),
    }
}

/// Where Sessions are kept, and why it is not the Workspace.
fn check_log_folder(state: &StateLocation) -> Vec<DoctorCheck> {
    const ID: &str = "log_folder";
    let folder = state.root.sessions();
    let mut checks = Vec::new();
    if let (Some(problem), Some(notice)) = (&state.problem, state.notice()) {
        let check = DoctorCheck::new(ID, CheckStatus::Warning, notice);
        let check = check.with_details(json!({ "path": problem.path().to_string_lossy() }));
        checks.push(check.with_kind(problem.kind()).with_next_action(&problem.next_action()));
    }
    match folder.open() {
        Ok(None) if checks.is_empty() => {
            return vec![DoctorCheck::new(ID, CheckStatus::Passed, "made with the first Session")];
        }
        Ok(None) => return checks,
        Err(error) => {
            let report = Report::describe(&error);
            checks.push(DoctorCheck::from_report(ID, &report));
            return checks;
        }
        Ok(Some(_)) => {}
    }
    let path = folder.path();
    if fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
        let check = DoctorCheck::warning_at(ID, &path, "can be read by others");
        checks
            .push(check.with_kind(Kind::UnsafeStatePath).with_next_action("chmod 700 that folder"));
    }
    checks.push(check_writable(ID, &path));
    checks
}

/// Logs that are damaged, unfinished, or not files.
fn check_logs(root: &StateRoot, listed: &[SessionSummary]) -> Vec<DoctorCheck> {
    let mut found = Vec::new();
    let sessions = root.sessions().open().ok().flatten();
    let entries = sessions.and_then(|sessions| sessions.entries().ok()).unwrap_or_default();
    for entry in entries {
        let id = entry.name.to_str().and_then(|name| name.strip_suffix(".ndjson"));
        let is_log = id.is_some_and(|id| SessionId::parse(id).is_ok());
        if is_log && entry.kind != FileType::RegularFile {
            let path = root.sessions().path().join(&entry.name);
            let check = DoctorCheck::warning_at("logs", &path, "is not a file, and no Session");
            found.push(check.with_kind(Kind::UnsafeStatePath).with_next_action("move it away"));
        }
    }
    for summary in listed {
        let id = &summary.session_id;
        let check = |message: &str| {
            let check =
                DoctorCheck::warning_at("logs", &summary.path, message).with_kind(Kind::LogDamaged);
            check.with_next_action(&format!("see `pixir diagnose {id}`"))
        };
        match &summary.status {
            SummaryStatus::Running { .. } => {}
            SummaryStatus::Unreadable { message } => {
                found.push(check(&format!("cannot be read: {message}")).into_failure());
            }
            _ if summary.bytes == 0 => found.push(check("is empty")),
            _ if is_torn(root, id) => found.push(check("ends in the middle of a line")),
            SummaryStatus::Open => found.push(check("has an unfinished Turn")),
            SummaryStatus::New
            | SummaryStatus::Answered
            | SummaryStatus::Failed { .. }
            | SummaryStatus::Interrupted => {}
        }
    }
    found
}

fn is_torn(root: &StateRoot, id: &SessionId) -> bool {
    let last = || -> io::Result<u8> {
        let mut file = log::open_file(root, id).map_err(io::Error::other)?;
        file.seek(SeekFrom::End(-1))?;
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        Ok(byte[0])
    };
    last().is_ok_and(|byte| byte != b'\n')
}

/// Files that killed processes left in Pixir's state.
fn check_leftovers(root: &StateRoot) -> Vec<DoctorCheck> {
    inspect::leftover_paths(root)
        .into_iter()
        .map(|path| {
            let check = DoctorCheck::warning_at(
                "leftovers",
                &path,
                "was left by a process that was killed",
            );
            check
                .with_kind(Kind::UnsafeStatePath)
                .with_next_action("remove it with `pixir gc --apply`")
        })
        .collect()
}

/// The `.git` of the repository that a folder is in.
fn find_dot_git(workspace: &Path) -> Option<PathBuf> {
    let mut candidates = workspace.ancestors().map(|folder| folder.join(".git"));
    candidates.find(|path| path.symlink_metadata().is_ok())
}

/// A broken repository, and a `.gitignore` that lets Logs be committed.
fn check_git(workspace: &Path) -> Vec<DoctorCheck> {
    let Some(dot_git) = find_dot_git(workspace) else { return Vec::new() };
    let mut found = Vec::new();
    let folder = if dot_git.is_dir() {
        Some(dot_git.clone())
    } else {
        let pointer = read_small_text(&dot_git);
        let target = pointer.trim().strip_prefix("gitdir:").map(|target| target.trim().to_owned());
        target.zip(dot_git.parent()).map(|(target, parent)| parent.join(target))
    };
    let has_head = folder.is_some_and(|folder| folder.join("HEAD").is_file());
    if !has_head {
        let check = DoctorCheck::warning_at("git", &dot_git, "is no repository: it has no HEAD");
        found.push(
            check
                .with_kind(Kind::NotFound)
                .with_next_action("repair the repository, or remove what is left of it"),
        );
    }
    let ignore = paths::state_folder(workspace).join(".gitignore");
    let names = read_small_text(&ignore);
    let is_kept_out =
        names.lines().any(|line| matches!(line.trim(), "/sessions/" | "sessions/" | "*"));
    let has_sessions = StateRoot::in_workspace(workspace).sessions().open();
    if matches!(has_sessions, Ok(Some(_))) && !is_kept_out {
        let check =
            DoctorCheck::warning_at("git", &ignore, "does not keep Logs out of your commits");
        found.push(
            check
                .with_kind(Kind::InvalidConfig)
                .with_next_action("put the line /sessions/ into it"),
        );
    }
    found
}

/// The text of a small file; empty when it cannot be read.
fn read_small_text(path: &Path) -> String {
    let bytes = read_regular(path, LARGEST_TEXT).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// Instruction files that are skipped or cut.
fn check_instructions(workspace: &Path, config: &Config) -> Vec<DoctorCheck> {
    let user_file = config.home.agents_md();
    let project = AgentsMd::load(&AgentsMdSources {
        workspace,
        user_file: &user_file,
        limit: config.instructions_limit,
        secrets: &Secrets::default(),
    });
    let check = |notice: &String| {
        let path = notice.split(": ").next().unwrap_or_default();
        DoctorCheck::new("instructions", CheckStatus::Warning, notice)
            .with_kind(Kind::ReadFailed)
            .with_details(json!({ "path": path }))
            .with_next_action("make it a text file that fits `instructions_limit`")
    };
    let whole = if project.text.is_some() { "AGENTS.md is used whole" } else { "no AGENTS.md" };
    or_passed(project.notices.iter().map(check).collect(), "instructions", whole)
}
