//! Checks of sandbox and containment: runs `true` and reads how it was confined.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{CheckStatus, DoctorCheck};
use crate::base::error::{Kind, Report};
use crate::base::files::StatePath;
use crate::base::id::{CallId, SessionId};
use crate::base::secret::Secrets;
use crate::frontends::cli::CliContext;
use crate::host::process::CommandRunner;
use crate::host::sandbox::Profile;
use crate::host::workspace::Workspace;
use crate::record::event::PermissionMode;
use crate::record::event::ToolEvents;
use crate::record::history::History;
use crate::record::resource::Resources;
use crate::record::state_dir::StateRoot;
use crate::settings::config::Config;
use crate::tools::tool::{EditorBridge, ToolContext};
use crate::tools::toolbox::Toolbox;

/// Runs `true` and reports its containment and its sandbox level.
pub async fn check_commands(
    folder: &Path,
    config: &Config,
    context: &CliContext,
) -> Vec<DoctorCheck> {
    // Private layers over caches would leave folders in the home.
    let mut config = config.clone();
    config.sandbox.caches = Vec::new();
    let facts = match run_contained_command(folder, &config, context).await {
        Ok(facts) => facts,
        Err(report) if report.kind == Kind::SandboxUnavailable.name() => {
            return vec![DoctorCheck::from_report("sandbox", &report)];
        }
        Err(report) => {
            let check = DoctorCheck::from_report("containment", &report);
            return vec![check.with_next_action(
                "see whether `bash.shell`, PATH and TMPDIR are as they should be",
            )];
        }
    };
    let word = |name: &str| facts[name].as_str().unwrap_or("unknown").to_owned();
    let (containment, level) = (word("containment"), word("sandbox"));
    let message = match containment.as_str() {
        "namespace" => "commands run in a process namespace",
        _ => "commands are collected by a subreaper, because namespaces are not available here",
    };
    let containment = DoctorCheck::new("containment", CheckStatus::Passed, message)
        .with_details(json!({ "level": containment }));
    vec![containment, sandbox_check(&level).with_details(json!({ "level": level }))]
}

fn sandbox_check(level: &str) -> DoctorCheck {
    match level {
        "full" => DoctorCheck::new(
            "sandbox",
            CheckStatus::Passed,
            "full: namespaces, Landlock and seccomp",
        ),
        "partial" => {
            let message = "partial: Landlock and seccomp; without namespaces, changes of .pixir, \
                .git/hooks and .git/config are only reverted afterwards, and modes and times of \
                files outside can be changed";
            DoctorCheck::new("sandbox", CheckStatus::Warning, message)
        }
        _ => DoctorCheck::new(
            "sandbox",
            CheckStatus::Warning,
            "off: commands can do whatever you can do",
        ),
    }
}

async fn run_contained_command(
    folder: &Path,
    config: &Config,
    context: &CliContext,
) -> Result<Value, Report> {
    let history = History::default();
    let scratch = StateRoot::in_state_folder(folder, StatePath::root(std::env::temp_dir()));
    let session_folder = scratch.session_folder(&SessionId::mint());
    let resources = Resources::new(&session_folder.folder());
    let toolbox = Toolbox::built_in(
        config,
        CommandRunner::new(context.process_host()?, config),
        &history,
        resources,
    );
    let bash = toolbox.find_tool("bash")?;
    let workspace = Workspace::open(folder)?;
    let cx = ToolContext {
        call_id: CallId::new("doctor".to_owned()),
        session_folder,
        output_folders: [].into(),
        workspace,
        cancel: CancellationToken::new(),
        events: ToolEvents::discard(),
        secrets: Arc::new(Secrets::default()),
        output_limit: config.output_limit,
        sandbox_profile: Profile::for_mode(config.sandbox.level, &PermissionMode::Auto),
        editor: EditorBridge::default(),
        tracker: None,
    };
    let output = bash.run(json!({"command": "true"}), cx).await?;
    if !output.ok {
        return Err(Report::new(Kind::CommandFailed, format!("`true` failed: {}", output.text)));
    }
    Ok(output.details)
}
