//! Tests of records, reports and schemas, without a running child.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::record::{Record, Status, View};
use super::show::{self, Outcome};
use super::spec::{Spec, Wish, Wisher};
use crate::record::event::{PermissionMode, SubagentUsage};
use crate::settings::config::Subagents as Limits;

fn record(status: Status) -> Record {
    let wish: Wish = serde_json::from_value(json!({"task": "look", "role": "explorer"})).unwrap();
    let (role, roster) =
        (crate::settings::role::Role::build(), crate::model::roles::Roster::none());
    let wisher = Wisher { mode: PermissionMode::Auto, depth: 0, role, roster };
    let spec = Spec::of(&wish, &wisher, &Limits::default()).unwrap();
    Record { status, ..Record::new(&spec, "gpt-5.5", None) }
}

fn view(status: Status) -> View {
    View { record: record(status), doing: String::new(), place: 0 }
}

#[test]
fn an_outcome_is_as_good_as_the_worst_child() {
    let outcome = |statuses: &[Status]| {
        Outcome::of(&statuses.iter().map(|status| view(*status)).collect::<Vec<_>>())
    };
    assert_eq!(outcome(&[Status::Completed, Status::Completed]), Outcome::Completed);
    for bad in [Status::Failed, Status::TimedOut, Status::Cancelled, Status::Detached] {
        assert_eq!(outcome(&[Status::Completed, bad]), Outcome::Partial);
        assert_eq!(outcome(&[Status::Running, bad]), Outcome::Incomplete);
    }
    assert_eq!(outcome(&[Status::Completed, Status::Queued]), Outcome::Incomplete);
}

#[test]
fn many_long_summaries_share_the_room_and_none_is_left_out() {
    let views: Vec<View> = (0..50)
        .map(|_| {
            let mut view = view(Status::Completed);
            view.record.summary = Some("word ".repeat(2000));
            view
        })
        .collect();
    let limit = 16 * 1024;
    let told = show::report(&views, limit);
    assert!(told.text.len() <= limit, "{}", told.text.len());
    assert!(views.iter().all(|view| told.text.contains(&view.record.id)));
    let one = show::report(&views[..1], limit).text;
    assert!(one.len() > 3 * 1024, "{}", one.len());
}

#[test]
fn who_does_not_fit_into_an_answer_is_left_for_the_next_one() {
    let mut views = vec![view(Status::Running)];
    for _ in 0..200 {
        let mut ended = view(Status::Completed);
        ended.record.summary = Some("word ".repeat(2000));
        views.push(ended);
    }
    let limit = 16 * 1024;
    let told = show::report(&views, limit);
    assert!(told.text.len() <= limit, "{}", told.text.len());
    let shown = told.ids.len();
    assert!((30..200).contains(&shown), "{shown}");
    assert!(told.text.contains(&format!("{} more are not shown", views.len() - shown)));
    let is_shown = |view: &View| told.text.contains(&view.record.id);
    assert_eq!(views.iter().filter(|view| is_shown(view)).count(), shown);
    assert!(!is_shown(&views[0]), "those that ended come first");
    assert!(told.ids.iter().all(|id| told.text.contains(id)));
}

#[test]
fn a_list_tells_the_beginning_of_each_summary_where_there_is_room() {
    let mut ended = view(Status::Failed);
    ended.record.summary = Some(format!("It broke.\nBadly. {}", "ü".repeat(1000)));
    let mut works = view(Status::Running);
    works.record.summary = Some("of an earlier run".into());
    let text = show::list(&[ended.clone(), works.clone()], 16 * 1024);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("  It broke. Badly. ü") && lines[1].len() < 320, "{text}");
    assert!(lines[2].contains("running"), "{text}");
    let many = vec![ended.clone(); 100];
    assert_eq!(show::list(&many, 16 * 1024).lines().count(), 100, "names come first");
    assert_eq!(show::list(&[], 100), "No Subagents.");
    // Where not even names fit, those at work are named and the rest is counted.
    let mut crowd = vec![ended; 500];
    crowd[7] = works;
    let text = show::list(&crowd, 16 * 1024);
    assert!(text.len() <= 16 * 1024 && text.contains("running"), "{text}");
    let told = text.lines().last().unwrap();
    let hidden: usize = told.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(hidden + text.lines().count() - 1, 500, "{told}");
}

#[test]
fn a_verdict_is_the_json_at_the_end() {
    let check = |text: &str, expected| assert_eq!(show::verdict(text), expected, "{text}");
    check(r#"Fine. {"verdict": "approve", "findings": []}"#, Some("approve"));
    check(
        "```json\n{\"verdict\": \"request_changes\", \"findings\": [{\"what\": \"{\"}]}\n```",
        Some("request_changes"),
    );
    check(r#"{"verdict": "superb"}"#, None);
    check("I approve.", None);
    check(r#"{"verdict": "approve"} and more"#, None);
}

#[test]
fn a_record_is_the_fold_of_its_events() {
    use crate::base::id::{EventId, SessionId};
    use crate::record::event::{Canonical, Event, Sequenced};
    let mut live = record(Status::Queued);
    let mut facts: Vec<Canonical> = vec![live.queued().into()];
    live.child = Some(crate::base::id::SessionId::mint());
    live.status = Status::Running;
    facts.push(live.event(crate::record::event::SubagentEventKind::Started).into());
    live.status = Status::TimedOut;
    live.summary = Some("half".into());
    live.reason = Some("timeout".into());
    live.elapsed = Duration::from_millis(1500);
    let usage = SubagentUsage { calls: 1, total_tokens: 7, ..SubagentUsage::default() };
    facts.push(live.ended(usage).into());
    live.usage = usage;
    let events = facts.into_iter().enumerate().map(|(seq, fact)| {
        Arc::new(Event::sequenced(Sequenced {
            id: EventId::mint(),
            session_id: SessionId::mint(),
            seq: Some(seq as u64),
            ts: crate::record::event::Timestamp::now(),
            fact,
            extra: crate::record::event::Extra::new(),
        }))
    });
    let history = crate::record::history::History::from_events(events.collect());
    let folded = Record::all(&history);
    live.is_told = true;
    assert_eq!(folded, [live]);
}

#[test]
fn the_kept_schemas_are_those_of_the_types() {
    use super::tools::drawn;
    crate::model::tool_spec::keep_schemas(drawn());
}
