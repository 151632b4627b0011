//! `pixir agents status`: the Subagents of a Session.

use clap::Args;
use serde_json::{Value, json};

use crate::agent::inspect;
use crate::agent::subagent;
use crate::agent::subagent::SubagentView;
use crate::base::error::Report;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_arg::SessionArg;
use crate::frontends::render::{clean, one_line};

/// Shown characters of a summary.
const SUMMARY_WIDTH: usize = 160;

/// Show the Subagents of a Session, running and finished
#[derive(Debug, Args)]
#[command(long_about = "Show the Subagents of a Session, running and finished.\n\n\
        Reads the Logs, also while another process has the Session open, and changes nothing.")]
pub struct AgentsStatusArgs {
    #[command(flatten)]
    session: SessionArg,
}

pub fn agents_status(args: &AgentsStatusArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    let holder = inspect::session_holder(&root, &id);
    let views = subagent::read_children(&root, &id, holder.is_some())?;
    if views.is_empty() && !context.flags.json {
        context.print_notice("this Session has no Subagents");
    }
    let subagents: Vec<Value> = views.iter().map(subagent_json).collect();
    let output = json!({ "session_id": id, "pid": holder, "subagents": subagents });
    context.print_result("agents", &views.iter().map(subagent_rows).collect::<String>(), output)
}

fn subagent_json(view: &SubagentView) -> Value {
    let mut node = subagent::child_json(view);
    node["task"] = json!(view.record.task);
    node["summary"] = json!(view.record.summary);
    node["doing"] = json!(view.activity);
    node["next_actions"] = json!(view.record.next_actions());
    node
}

fn subagent_rows(view: &SubagentView) -> String {
    let summary = clean(view.record.summary.as_deref().unwrap_or(&view.record.task));
    let first = summary.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut rows = vec![
        one_line(&subagent::status_line(view), 240),
        format!("  {}", one_line(first, SUMMARY_WIDTH)),
    ];
    let actions = view.record.next_actions();
    rows.extend(actions.iter().map(|action| format!("  try: {}", clean(action))));
    rows.join("\n") + "\n"
}
