//! Kills during a token renewal: the store is the old one or the new one, and what comes
//! next either works or says clearly what to do.

use std::path::PathBuf;

use pixir::scripted::{Endpoint, Fault};
use serde_json::Value;

use super::support::desk::Desk;
use super::support::house::PIXIR;
use super::support::{leaks, tracer};

/// What can be seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Draft {
    None,
    /// The file exists and is empty.
    Blank,
    /// Some of what came is in it.
    Half,
    Whole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sight {
    draft: Draft,
    /// The issuer has spent the old refresh token.
    is_rotated: bool,
    is_stored: bool,
}

/// What the next run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Works,
    AsksToSignIn,
}

fn drafts(desk: &Desk) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(desk.auth().parent().unwrap()).unwrap().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".auth."))
        .map(|entry| entry.path())
        .collect()
}

fn look(desk: &Desk, before: &[u8]) -> Sight {
    let draft = match drafts(desk).first().and_then(|path| std::fs::read(path).ok()) {
        None => Draft::None,
        Some(text) if serde_json::from_slice::<Value>(&text).is_ok() => Draft::Whole,
        Some(text) if text.len() == 64 * 1024 => Draft::Blank,
        Some(_) => Draft::Half,
    };
    let stored = std::fs::read(desk.auth()).unwrap();
    assert!(serde_json::from_slice::<Value>(&stored).is_ok(), "the store is never half");
    let is_rotated = desk.issuer.counts().refreshes > 0;
    Sight { draft, is_rotated, is_stored: stored != before }
}

async fn killed_at(name: &str, is_here: impl Fn(Sight) -> bool + Send + 'static, then: Then) {
    let desk = Desk::new().await;
    desk.sign_in(-10);
    let before = std::fs::read(desk.auth()).unwrap();
    let (desk, struck) = tokio::task::spawn_blocking(move || {
        let program = [PIXIR, "hello", "there"];
        let was_killed = tracer::kill_when(
            &program,
            |command| desk.dress(command),
            || is_here(look(&desk, &before)),
        );
        (desk, was_killed.then_some(before))
    })
    .await
    .unwrap();
    let before = struck.unwrap_or_else(|| panic!("{name}: it never came to that"));
    let left = look(&desk, &before);
    match then {
        Then::Works => {
            let run = desk.run(&["hello", "again"]).exits(0);
            assert_eq!(run.out, "hello from the plan\n", "{name}");
            let counts = desk.issuer.counts();
            assert_eq!((counts.refreshes, counts.reuses), (1, 0), "{name}: {left:?}");
        }
        Then::AsksToSignIn => {
            // Said as often as it is asked, and the store stays.
            for _ in 0..2 {
                let run = desk.run(&["hello", "again"]).exits(4);
                assert!(run.err.contains("sign in again with `pixir login`"), "{}", run.err);
                assert!(run.err.contains("killed while it renewed"), "{name}: {}", run.err);
                assert_eq!(std::fs::read(desk.auth()).unwrap(), before, "{name}");
            }
            let _ = desk.run(&["login", "--device-code"]).exits(0);
            assert_eq!(desk.run(&["hello", "again"]).exits(0).out, "hello from the plan\n");
        }
    }
    assert_eq!(drafts(&desk), Vec::<PathBuf>::new(), "{name}: nothing is left lying about");
    leaks::look();
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_token_is_spent_nothing_is_lost() {
    killed_at("room made", |sight| sight.draft == Draft::Blank, Then::Works).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn between_the_issuers_answer_and_the_disk_a_person_must_sign_in_again() {
    let is_under_way = |sight: Sight| sight.is_rotated && sight.draft == Draft::Blank;
    killed_at("answer under way", is_under_way, Then::AsksToSignIn).await;
    killed_at(
        "half written",
        |sight| sight.draft == Draft::Half && sight.is_rotated,
        Then::AsksToSignIn,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_found_although_nobody_put_it_in_place() {
    let is_written = |sight: Sight| sight.draft == Draft::Whole && !sight.is_stored;
    killed_at("written, not in place", is_written, Then::Works).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_place_is_used() {
    killed_at("in place", |sight| sight.is_stored, Then::Works).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_out_also_forgets_what_a_killed_renewal_left() {
    let desk = Desk::new().await;
    desk.sign_in(-10);
    let draft = desk.auth().with_file_name(".auth.0123456789abcdef");
    std::fs::write(&draft, desk.issuer.signed_in(3600).to_string()).unwrap();
    let _ = desk.run(&["logout"]).exits(0);
    assert!(!desk.auth().exists() && !draft.exists());
    // Also when nothing else is there to forget.
    std::fs::write(&draft, desk.issuer.signed_in(3600).to_string()).unwrap();
    let _ = desk.run(&["logout"]).exits(0);
    assert!(!draft.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_token_that_comes_alone_is_kept() {
    let desk = Desk::new().await;
    desk.sign_in(-10);
    let next = desk.issuer.signed_in(3600)["refresh_token"].as_str().unwrap().to_owned();
    let alone = serde_json::json!({ "refresh_token": next });
    desk.issuer.fail(Endpoint::Refresh, Fault::Answer(200, alone.to_string()));
    let run = desk.run(&["hello", "there"]).exits(0);
    assert_eq!(run.out, "hello from the plan\n");
    assert_eq!((desk.issuer.counts().refreshes, desk.issuer.counts().reuses), (1, 0));
}
