//! `pixir acp`: the Agent Client Protocol on stdin and stdout, until the editor closes stdin.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tokio::sync::OnceCell;

use super::{login, logout};
use crate::agent::harness::{Harness, ProcessLimits};
use crate::base::error::{Kind, Report};
use crate::frontends::acp;
use crate::frontends::acp::{Doors, SignIn};
use crate::frontends::cli::Context;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::setup::Opened;
use crate::frontends::cli::terminal::signals::Signals;
use crate::host::rpc::BlockingStream;
use crate::model::credential::{CredentialKind, FieldPolicy};
use crate::record::event::PermissionMode;
use crate::settings::config::{Config, Loaded, Sight};
use crate::settings::role::strictest;
use crate::testing::scripted::Server;

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

pub fn acp(args: &AcpArgs, context: &Context) -> Result<Exit, Report> {
    if args.login {
        return login::login(&login::LoginArgs::default(), context);
    }
    let context = Arc::new(context.clone());
    let doors = doors(&context)?;
    in_runtime(async {
        let mut signals = Signals::listen();
        let stop = async move {
            signals.next().await;
        };
        let input = BlockingStream(std::io::stdin());
        let output = BlockingStream(std::io::stdout());
        acp::serve(doors, input, output, stop)
            .await
            .map_err(|error| Report::new(Kind::Internal, format!("no streams: {error}")))?;
        Ok(Exit::Answered)
    })
}

fn doors(context: &Arc<Context>) -> Result<Doors, Report> {
    // Unreadable settings are reported when a Session is opened: an agent that does not start cannot
    // report anything to the editor.
    let config = context.user_settings().or_else(|_| context.home().map(Config::new))?;
    let sees_images = sees_images(context, &config);
    let demo = Arc::new(OnceCell::new());
    // Each Workspace has its own Harness; the limits on processes are shared.
    let limits = ProcessLimits::default();
    let admitting = Arc::clone(context);
    let opener = Arc::clone(context);
    let signer = Arc::clone(context);
    let leaver = Arc::clone(context);
    Ok(Doors {
        config,
        sees_images,
        admit: Box::new(move |directory| admitting.admit_for_client(directory)),
        open: Box::new(move |workspace| {
            let (context, demo) = (Arc::clone(&opener), Arc::clone(&demo));
            let limits = limits.clone();
            Box::pin(async move { Ok(Arc::new(open(&context, workspace, &demo, limits).await?)) })
        }),
        sign_in: Box::new(move |way| {
            let context = Arc::clone(&signer);
            Box::pin(async move { sign_in(&context, way).await })
        }),
        sign_out: Box::new(move || {
            let context = Arc::clone(&leaver);
            Box::pin(async move { logout::sign_out(&context).await.map(drop) })
        }),
    })
}

/// Opens a Harness for a Workspace, with the settings of that Workspace.
async fn open(
    context: &Context,
    workspace: PathBuf,
    demo: &OnceCell<Server>,
    limits: ProcessLimits,
) -> Result<Harness, Report> {
    let Opened { mut loaded, access } = context.open_unasked(&workspace, None)?;
    for notice in &loaded.notices {
        context.notice(notice);
    }
    loaded.config.permission_mode = mode(&loaded.config);
    let (credential, server) = access.open().await?;
    if let Some(server) = server {
        // The server of the embedded model lives as long as the process; one is enough.
        demo.set(server).ok();
    }
    let Loaded { config, notices, .. } = loaded;
    let harness = Harness::open_sharing(context.door(config, credential)?, limits);
    // An editor's user does not read standard error.
    Ok(harness.noting(notices))
}

/// The permission mode for an editor: `ask`, unless the settings name another one.
fn mode(config: &Config) -> PermissionMode {
    if config.mode_named {
        return config.permission_mode.clone();
    }
    match &config.acp_mode {
        Some(mode) => mode.clone(),
        None => strictest(&config.permission_mode, &PermissionMode::Ask),
    }
}

/// Whether the model that will most likely be used accepts images.
fn sees_images(context: &Context, config: &Config) -> bool {
    let Ok(chosen) = context.chosen(config) else { return true };
    let takes_images = chosen.credential.policy() != FieldPolicy::Portable;
    let endpoint = (config.home.clone(), chosen.credential.base_url());
    Sight::new(takes_images, endpoint, &config.model).sees()
}

async fn sign_in(context: &Context, way: SignIn) -> Result<(), Report> {
    match way {
        SignIn::ChatGpt => login::in_browser(context).await,
        SignIn::ApiKey => {
            let config = context.user_settings()?;
            let chosen = context.chosen(&config)?;
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
