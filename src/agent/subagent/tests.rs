//! Tests of records, reports and schemas, without a running child.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::record::{SubagentRecord, SubagentStatus, SubagentView};
use super::show::{self, WaitOutcome};
use super::spec::{Requester, SpawnArgs, SubagentSpec};
use crate::record::event::{PermissionMode, SubagentUsage};
use crate::settings::config::SubagentLimits as Limits;

fn record(status: SubagentStatus) -> SubagentRecord {
    let args: SpawnArgs =
        serde_json::from_value(json!({"task": "look", "role": "explorer"})).unwrap();
    let (role, role_catalog) =
        (crate::settings::role::Role::build(), crate::model::roles::RoleCatalog::none());
    let requester = Requester { mode: PermissionMode::Auto, depth: 0, role, role_catalog };
    let spec = SubagentSpec::from_args(&args, &requester, &Limits::default()).unwrap();
    SubagentRecord { status, ..SubagentRecord::new(&spec, "gpt-5.5", None) }
}

fn view(status: SubagentStatus) -> SubagentView {
    SubagentView { record: record(status), activity: String::new(), position: 0 }
}

#[test]
fn an_outcome_is_as_good_as_the_worst_child() {
    let outcome = |statuses: &[SubagentStatus]| {
        WaitOutcome::from_views(&statuses.iter().map(|status| view(*status)).collect::<Vec<_>>())
    };
    assert_eq!(
        outcome(&[SubagentStatus::Completed, SubagentStatus::Completed]),
        WaitOutcome::Completed
    );
    for bad in [
        SubagentStatus::Failed,
        SubagentStatus::TimedOut,
        SubagentStatus::Cancelled,
        SubagentStatus::Detached,
    ] {
        assert_eq!(outcome(&[SubagentStatus::Completed, bad]), WaitOutcome::Partial);
        assert_eq!(outcome(&[SubagentStatus::Running, bad]), WaitOutcome::Incomplete);
    }
    assert_eq!(
        outcome(&[SubagentStatus::Completed, SubagentStatus::Queued]),
        WaitOutcome::Incomplete
    );
}

#[test]
fn many_long_summaries_share_the_room_and_none_is_left_out() {
    let views: Vec<SubagentView> = (0..50)
        .map(|_| {
            let mut view = view(SubagentStatus::Completed);
            view.record.summary = Some("word ".repeat(2000));
            view
        })
        .collect();
    let limit = 16 * 1024;
    let report = show::wait_report(&views, limit);
    assert!(report.text.len() <= limit, "{}", report.text.len());
    assert!(views.iter().all(|view| report.text.contains(&view.record.id)));
    let one = show::wait_report(&views[..1], limit).text;
    assert!(one.len() > 3 * 1024, "{}", one.len());
}

#[test]
fn who_does_not_fit_into_an_answer_is_left_for_the_next_one() {
    let mut views = vec![view(SubagentStatus::Running)];
    for _ in 0..200 {
        let mut ended = view(SubagentStatus::Completed);
        ended.record.summary = Some("word ".repeat(2000));
        views.push(ended);
    }
    let limit = 16 * 1024;
    let report = show::wait_report(&views, limit);
    assert!(report.text.len() <= limit, "{}", report.text.len());
    let shown = report.ids.len();
    assert!((30..200).contains(&shown), "{shown}");
    assert!(report.text.contains(&format!("{} more are not shown", views.len() - shown)));
    let is_shown = |view: &SubagentView| report.text.contains(&view.record.id);
    assert_eq!(views.iter().filter(|view| is_shown(view)).count(), shown);
    assert!(!is_shown(&views[0]), "those that ended come first");
    assert!(report.ids.iter().all(|id| report.text.contains(id)));
}

#[test]
fn a_list_tells_the_beginning_of_each_summary_where_there_is_room() {
    let mut ended = view(SubagentStatus::Failed);
    ended.record.summary = Some(format!("It broke.\nBadly. {}", "ü".repeat(1000)));
    let mut works = view(SubagentStatus::Running);
    works.record.summary = Some("of an earlier run".into());
    let text = show::list_text(&[ended.clone(), works.clone()], 16 * 1024);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("  It broke. Badly. ü") && lines[1].len() < 320, "{text}");
    assert!(lines[2].contains("running"), "{text}");
    let many = vec![ended.clone(); 100];
    assert_eq!(show::list_text(&many, 16 * 1024).lines().count(), 100, "names come first");
    assert_eq!(show::list_text(&[], 100), "No Subagents.");
    // Where not even names fit, running children are named and the rest is counted.
    let mut many_views = vec![ended; 500];
    many_views[7] = works;
    let text = show::list_text(&many_views, 16 * 1024);
    assert!(text.len() <= 16 * 1024 && text.contains("running"), "{text}");
    let report = text.lines().last().unwrap();
    let hidden: usize = report.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(hidden + text.lines().count() - 1, 500, "{report}");
}

#[test]
fn a_verdict_is_the_json_at_the_end() {
    let check = |text: &str, expected| assert_eq!(show::parse_verdict(text), expected, "{text}");
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
    use crate::record::event::{Canonical, CanonicalParts, Event};
    let mut live = record(SubagentStatus::Queued);
    let mut facts: Vec<Canonical> = vec![live.queued_event().into()];
    live.child = Some(crate::base::id::SessionId::mint());
    live.status = SubagentStatus::Running;
    facts.push(live.new_event(crate::record::event::SubagentEventKind::Started).into());
    live.status = SubagentStatus::TimedOut;
    live.summary = Some("half".into());
    live.reason = Some("timeout".into());
    live.elapsed = Duration::from_millis(1500);
    let usage = SubagentUsage { calls: 1, total_tokens: 7, ..SubagentUsage::default() };
    facts.push(live.ended_event(usage).into());
    live.usage = usage;
    let events = facts.into_iter().enumerate().map(|(seq, fact)| {
        Arc::new(Event::new_canonical(CanonicalParts {
            id: EventId::mint(),
            session_id: SessionId::mint(),
            seq: Some(seq as u64),
            ts: crate::record::event::Timestamp::now(),
            fact,
            extra: crate::record::event::Extra::new(),
        }))
    });
    let history = crate::record::history::History::from_events(events.collect());
    let folded = SubagentRecord::read_all(&history);
    live.is_reported = true;
    assert_eq!(folded, [live]);
}

#[test]
fn the_kept_schemas_are_those_of_the_types() {
    use super::tools::generated_schemas;
    crate::model::tool_spec::store_schemas(generated_schemas());
}
