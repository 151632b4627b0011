//! Kills during a token renewal: the store is the old one or the new one, and the next run
//! works or says what to do.

use std::path::PathBuf;

use pixir::scripted::{IssuerEndpoint, IssuerFault};
use serde_json::Value;

use super::support::sign_in_env::SignInEnv;
use super::support::test_env::PIXIR;
use super::support::{leaks, syscall_tracer};

/// The draft of the token store, as seen on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DraftState {
    None,
    /// Space is allocated, and the tokens are not written yet.
    Blank,
    /// A part of the new tokens is written.
    Half,
    Whole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StoreState {
    draft: DraftState,
    /// The issuer has already exchanged the old refresh token.
    is_rotated: bool,
    is_stored: bool,
}

/// The expected behaviour of the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterKill {
    Works,
    AsksToSignIn,
}

fn drafts(env: &SignInEnv) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(env.auth_file().parent().unwrap()).unwrap().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".auth."))
        .map(|entry| entry.path())
        .collect()
}

fn read_store_state(env: &SignInEnv, before: &[u8]) -> StoreState {
    let draft = match drafts(env).first().and_then(|path| std::fs::read(path).ok()) {
        None => DraftState::None,
        Some(text) if serde_json::from_slice::<Value>(&text).is_ok() => DraftState::Whole,
        Some(text) if text.len() == 64 * 1024 => DraftState::Blank,
        Some(_) => DraftState::Half,
    };
    let stored = std::fs::read(env.auth_file()).unwrap();
    assert!(serde_json::from_slice::<Value>(&stored).is_ok(), "the store is complete JSON");
    let is_rotated = env.issuer.counts().refreshes > 0;
    StoreState { draft, is_rotated, is_stored: stored != before }
}

async fn killed_at(
    name: &str,
    is_here: impl Fn(StoreState) -> bool + Send + 'static,
    then: AfterKill,
) {
    let env = SignInEnv::new().await;
    env.sign_in(-10);
    let before = std::fs::read(env.auth_file()).unwrap();
    let (env, killed) = tokio::task::spawn_blocking(move || {
        let program = [PIXIR, "hello", "there"];
        let was_killed = syscall_tracer::kill_when(
            &program,
            |command| env.configure_command(command),
            || is_here(read_store_state(&env, &before)),
        );
        (env, was_killed.then_some(before))
    })
    .await
    .unwrap();
    let before = killed.unwrap_or_else(|| panic!("{name}: the state was never reached"));
    let left = read_store_state(&env, &before);
    match then {
        AfterKill::Works => {
            let run = env.run(&["hello", "again"]).assert_exit_code(0);
            assert_eq!(run.out, "hello from the plan\n", "{name}");
            let counts = env.issuer.counts();
            assert_eq!((counts.refreshes, counts.reuses), (1, 0), "{name}: {left:?}");
        }
        AfterKill::AsksToSignIn => {
            // The error is repeated, and the store is not changed.
            for _ in 0..2 {
                let run = env.run(&["hello", "again"]).assert_exit_code(4);
                assert!(run.err.contains("sign in again with `pixir login`"), "{}", run.err);
                assert!(run.err.contains("killed during a renewal"), "{name}: {}", run.err);
                assert_eq!(std::fs::read(env.auth_file()).unwrap(), before, "{name}");
            }
            let _ = env.run(&["login", "--device-code"]).assert_exit_code(0);
            assert_eq!(
                env.run(&["hello", "again"]).assert_exit_code(0).out,
                "hello from the plan\n"
            );
        }
    }
    assert_eq!(drafts(&env), Vec::<PathBuf>::new(), "{name}: no draft is left");
    leaks::scan_process_arguments();
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_token_is_spent_nothing_is_lost() {
    killed_at("room made", |state| state.draft == DraftState::Blank, AfterKill::Works).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn between_the_issuers_answer_and_the_disk_a_person_must_sign_in_again() {
    let is_under_way = |state: StoreState| state.is_rotated && state.draft == DraftState::Blank;
    killed_at("answer under way", is_under_way, AfterKill::AsksToSignIn).await;
    killed_at(
        "half written",
        |state| state.draft == DraftState::Half && state.is_rotated,
        AfterKill::AsksToSignIn,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_written_draft_that_was_not_renamed_is_found() {
    let is_written = |state: StoreState| state.draft == DraftState::Whole && !state.is_stored;
    killed_at("written, not in place", is_written, AfterKill::Works).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_place_is_used() {
    killed_at("in place", |state| state.is_stored, AfterKill::Works).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_out_also_forgets_what_a_killed_renewal_left() {
    let env = SignInEnv::new().await;
    env.sign_in(-10);
    let draft = env.auth_file().with_file_name(".auth.0123456789abcdef");
    std::fs::write(&draft, env.issuer.sign_in(3600).to_string()).unwrap();
    let _ = env.run(&["logout"]).assert_exit_code(0);
    assert!(!env.auth_file().exists() && !draft.exists());
    // The draft is removed even if there is no store.
    std::fs::write(&draft, env.issuer.sign_in(3600).to_string()).unwrap();
    let _ = env.run(&["logout"]).assert_exit_code(0);
    assert!(!draft.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_token_that_comes_alone_is_kept() {
    let env = SignInEnv::new().await;
    env.sign_in(-10);
    let next = env.issuer.sign_in(3600)["refresh_token"].as_str().unwrap().to_owned();
    let alone = serde_json::json!({ "refresh_token": next });
    env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Answer(200, alone.to_string()));
    let run = env.run(&["hello", "there"]).assert_exit_code(0);
    assert_eq!(run.out, "hello from the plan\n");
    assert_eq!((env.issuer.counts().refreshes, env.issuer.counts().reuses), (1, 0));
}
