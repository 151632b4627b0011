//! `pixir agents status`: the Subagents of a Session.

use clap::Args;
use serde_json::{Value, json};

use crate::agent::inspect;
use crate::agent::subagent;
use crate::agent::subagent::View;
use crate::base::error::Report;
use crate::frontends::cli::Context;
use crate::frontends::cli::chosen::Chosen;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::{clean, one_line};

/// Shown characters of a summary.
const SUMMARY: usize = 160;

/// Show the Subagents of a Session, running and finished
#[derive(Debug, Args)]
#[command(long_about = "Show the Subagents of a Session, running and finished.\n\n\
        Reads the Logs, also while another process has the Session open, and changes nothing.")]
pub struct StatusArgs {
    #[command(flatten)]
    session: Chosen,
}

pub fn status(args: &StatusArgs, context: &Context) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    let holder = inspect::holder_of(&root, &id);
    let views = subagent::children(&root, &id, holder.is_some())?;
    if views.is_empty() && !context.flags.json {
        context.notice("this Session has no Subagents");
    }
    let subagents: Vec<Value> = views.iter().map(node).collect();
    let output = json!({ "session_id": id, "pid": holder, "subagents": subagents });
    context.told("agents", &views.iter().map(row).collect::<String>(), output)
}

fn node(view: &View) -> Value {
    let mut node = subagent::value(view);
    node["task"] = json!(view.record.task);
    node["summary"] = json!(view.record.summary);
    node["doing"] = json!(view.doing);
    node["next_actions"] = json!(view.record.next_actions());
    node
}

fn row(view: &View) -> String {
    let told = clean(view.record.summary.as_deref().unwrap_or(&view.record.task));
    let first = told.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut rows =
        vec![one_line(&subagent::line(view), 240), format!("  {}", one_line(first, SUMMARY))];
    let actions = view.record.next_actions();
    rows.extend(actions.iter().map(|action| format!("  try: {}", clean(action))));
    rows.join("\n") + "\n"
}
