//! `pixir acp`: the Agent Client Protocol on stdin and stdout, until the editor closes stdin.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tokio::sync::OnceCell;

use super::{login, logout};
use crate::agent::harness::{Harness, ProcessLimits};
use crate::base::error::{Kind, Report};
use crate::frontends::acp;
use crate::frontends::acp::{AcpHost, SignIn};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::setup::TurnSetup;
use crate::frontends::signals::SignalListener;
use crate::host::rpc::BlockingStream;
use crate::model::credential::{CredentialKind, FieldPolicy};
use crate::record::event::PermissionMode;
use crate::settings::config::{Config, ImageSupport, LoadedConfig};
use crate::settings::role::stricter_mode;
use crate::testing::scripted::ScriptedServer;

/// Serve an editor: the Agent Client Protocol on stdin and stdout
#[derive(Debug, Args)]
#[command(
    long_about = "Serve an editor: the Agent Client Protocol on stdin and stdout.\n\n\
        Editors start this; put `pixir acp` into their settings. Each line is one JSON-RPC message. It ends when \
        stdin does, or when stdout is closed. An editor cannot open `/`, your home folder or its parents as a \
        Workspace unless --cwd names them. Every change is confirmed in the editor, unless --auto, --read-only or \
        `acp.mode` of the config says otherwise.",
    after_long_help = "Examples:\n  pixir acp\n  pixir acp --login"
)]
pub struct AcpArgs {
    /// Sign in on this terminal instead, as `pixir login` does
    #[arg(long)]
    login: bool,
}

pub fn acp(args: &AcpArgs, context: &CliContext) -> Result<Exit, Report> {
    if args.login {
        return login::login(&login::LoginArgs::default(), context);
    }
    let context = Arc::new(context.clone());
    let host = acp_host(&context)?;
    in_runtime(async {
        let mut signals = SignalListener::listen();
        let stop = async move {
            signals.next().await;
        };
        let input = BlockingStream(std::io::stdin());
        let output = BlockingStream(std::io::stdout());
        acp::serve(host, input, output, stop)
            .await
            .map_err(|error| Report::new(Kind::Internal, format!("no streams: {error}")))?;
        Ok(Exit::Answered)
    })
}

fn acp_host(context: &Arc<CliContext>) -> Result<AcpHost, Report> {
    // Unreadable settings are reported when a Session is opened: an agent that does not start cannot
    // report anything to the editor.
    let config = context.load_user_settings().or_else(|_| context.home().map(Config::new))?;
    let sees_images = sees_images(context, &config);
    let demo = Arc::new(OnceCell::new());
    // Each Workspace has its own Harness; the limits on processes are shared.
    let limits = ProcessLimits::default();
    let admit_context = Arc::clone(context);
    let open_context = Arc::clone(context);
    let sign_in_context = Arc::clone(context);
    let sign_out_context = Arc::clone(context);
    Ok(AcpHost {
        config,
        sees_images,
        check_directory: Box::new(move |directory| admit_context.admit_for_client(directory)),
        open_harness: Box::new(move |workspace| {
            let (context, demo) = (Arc::clone(&open_context), Arc::clone(&demo));
            let limits = limits.clone();
            Box::pin(async move {
                Ok(Arc::new(open_harness(&context, workspace, &demo, limits).await?))
            })
        }),
        sign_in: Box::new(move |way| {
            let context = Arc::clone(&sign_in_context);
            Box::pin(async move { sign_in(&context, way).await })
        }),
        sign_out: Box::new(move || {
            let context = Arc::clone(&sign_out_context);
            Box::pin(async move { logout::sign_out(&context).await.map(drop) })
        }),
    })
}

/// Opens a Harness for a Workspace, with the settings of that Workspace.
async fn open_harness(
    context: &CliContext,
    workspace: PathBuf,
    demo: &OnceCell<ScriptedServer>,
    limits: ProcessLimits,
) -> Result<Harness, Report> {
    let TurnSetup { mut loaded, access } = context.prepare_turn_without_asking(&workspace, None)?;
    for notice in &loaded.notices {
        context.print_notice(notice);
    }
    loaded.config.permission_mode = acp_permission_mode(&loaded.config);
    let (credential, server) = access.connect().await?;
    if let Some(server) = server {
        // The server of the embedded model lives as long as the process; one is enough.
        demo.set(server).ok();
    }
    let LoadedConfig { config, notices, .. } = loaded;
    let harness = Harness::open_with_limits(context.harness_options(config, credential)?, limits);
    // An editor's user does not read standard error.
    Ok(harness.with_notices(notices))
}

/// The permission mode for an editor: `ask`, unless the settings name another one.
fn acp_permission_mode(config: &Config) -> PermissionMode {
    if config.mode_named {
        return config.permission_mode.clone();
    }
    match &config.acp_mode {
        Some(mode) => mode.clone(),
        None => stricter_mode(&config.permission_mode, &PermissionMode::Ask),
    }
}

/// Whether the model that will most likely be used accepts images.
fn sees_images(context: &CliContext, config: &Config) -> bool {
    let Ok(chosen) = context.choose_credential(config) else { return true };
    let takes_images = chosen.credential.policy() != FieldPolicy::Portable;
    let endpoint = (config.home.clone(), chosen.credential.base_url());
    ImageSupport::new(takes_images, endpoint, &config.model).is_supported()
}

async fn sign_in(context: &CliContext, way: SignIn) -> Result<(), Report> {
    match way {
        SignIn::ChatGpt => login::sign_in_with_browser(context).await,
        SignIn::ApiKey => {
            let config = context.load_user_settings()?;
            let chosen = context.choose_credential(&config)?;
            if chosen.credential.kind() == CredentialKind::ApiKey {
                return Ok(());
            }
            let is_set =
                context.environment.get("OPENAI_API_KEY").is_some_and(|key| !key.is_empty());
            if is_set {
                return Ok(());
            }
            Err(Report::new(Kind::NotAuthenticated, "OPENAI_API_KEY is not set")
                .with_next_actions(vec!["set it where your editor is started".to_owned()]))
        }
    }
}
