//! Checks of sandbox and containment: runs `true` and reads how it was confined.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Check, Health};
use crate::base::error::{Kind, Report};
use crate::base::files::StateFolder;
use crate::base::id::{CallId, SessionId};
use crate::base::secret::Secrets;
use crate::frontends::cli::Context;
use crate::host::process::Commands;
use crate::host::sandbox::Profile;
use crate::host::workspace::Workspace;
use crate::record::event::PermissionMode;
use crate::record::event::Signals;
use crate::record::history::History;
use crate::record::resource::Shelf;
use crate::record::state_dir::StateRoot;
use crate::settings::config::Config;
use crate::tools::tool::{Desk, ToolContext};
use crate::tools::toolbox::Toolbox;

/// Runs `true` and reports its containment and its sandbox level.
pub async fn commands(folder: &Path, config: &Config, context: &Context) -> Vec<Check> {
    // Private layers over caches would leave folders in the home.
    let mut config = config.clone();
    config.sandbox.caches = Vec::new();
    let facts = match contained(folder, &config, context).await {
        Ok(facts) => facts,
        Err(report) if report.kind == Kind::SandboxUnavailable.name() => {
            return vec![Check::failed("sandbox", &report)];
        }
        Err(report) => {
            let check = Check::failed("containment", &report);
            return vec![
                check.next("see whether `bash.shell`, PATH and TMPDIR are as they should be"),
            ];
        }
    };
    let word = |name: &str| facts[name].as_str().unwrap_or("unknown").to_owned();
    let (containment, level) = (word("containment"), word("sandbox"));
    let message = match containment.as_str() {
        "namespace" => "commands run in a process namespace",
        _ => "commands are collected by a subreaper, because namespaces are not available here",
    };
    let containment =
        Check::new("containment", Health::Passed, message).with(json!({ "level": containment }));
    vec![containment, sandbox(&level).with(json!({ "level": level }))]
}

fn sandbox(level: &str) -> Check {
    match level {
        "full" => Check::new("sandbox", Health::Passed, "full: namespaces, Landlock and seccomp"),
        "partial" => {
            let message = "partial: Landlock and seccomp; without namespaces, changes of .pixir, \
                .git/hooks and .git/config are only reverted afterwards, and modes and times of \
                files outside can be changed";
            Check::new("sandbox", Health::Warning, message)
        }
        _ => Check::new("sandbox", Health::Warning, "off: commands can do whatever you can do"),
    }
}

async fn contained(folder: &Path, config: &Config, context: &Context) -> Result<Value, Report> {
    let history = History::default();
    let scratch = StateRoot::at(folder, StateFolder::root(std::env::temp_dir()));
    let session_folder = scratch.session_folder(&SessionId::mint());
    let shelf = Shelf::new(&session_folder.folder());
    let toolbox =
        Toolbox::built_in(config, Commands::new(context.host()?, config), &history, shelf);
    let bash = toolbox.find("bash")?;
    let workspace = Workspace::open(folder)?;
    let cx = ToolContext {
        call_id: CallId::new("doctor".to_owned()),
        session_folder,
        output_folders: [].into(),
        workspace,
        cancel: CancellationToken::new(),
        signals: Signals::nowhere(),
        secrets: Arc::new(Secrets::default()),
        output_limit: config.output_limit,
        confinement: Profile::of(config.sandbox.level, &PermissionMode::Auto),
        desk: Desk::default(),
        tracker: None,
    };
    let output = bash.run(json!({"command": "true"}), cx).await?;
    if !output.ok {
        return Err(Report::new(Kind::CommandFailed, format!("`true` failed: {}", output.text)));
    }
    Ok(output.details)
}
