//! `resource_view` tool: shows a Resource of this Session again.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::rewrite::run_file_work;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::record::event::ResourceDescriptor;
use crate::record::resource::{ResourceReadError, Resources, escape_controls, fitting_prefix};
use crate::tools::files::image;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// Bytes of the output limit reserved for the note after a page.
const NOTE_RESERVE: usize = 256;
/// How many ids are suggested.
const MAX_SUGGESTED: usize = 10;

/// The `resource_view` tool.
#[derive(Debug)]
pub struct ResourceViewTool(pub Resources);

/// The arguments of `resource_view`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Resource id, such as `res_0123456789abcdef`.
    pub id: String,
    /// First byte of a text, default 0.
    pub offset: Option<u64>,
}

impl Tool for ResourceViewTool {
    type Args = Args;
    const NAME: &'static str = "resource_view";
    const DESCRIPTION: &'static str =
        "Shows an attached or earlier shown resource again: an image, or a page of a text.";

    fn plan(&self, args: &Args, _context: &ToolContext) -> Result<CallPlan, ToolError> {
        let summary = format!("view {}", crate::base::text::truncate_chars(&args.id, 40));
        Ok(CallPlan::new(CallEffect::Read, summary))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let resources = self.0.clone();
        run_file_work(move || {
            let found =
                resources.find(&args.id).ok_or_else(|| unknown_resource(&resources, &args.id))?;
            let bytes = resources.bytes(&found).map_err(|reason| lost_resource(&found, &reason))?;
            if found.is_image() {
                return image::show_image(&resources, &found);
            }
            if found.is_text() {
                let room = context.output_limit.saturating_sub(NOTE_RESERVE);
                return show_page(&found, &bytes, args.offset.unwrap_or_default(), room);
            }
            let path = resources.path(&found);
            let path = path.strip_prefix(context.workspace.root()).unwrap_or(&path);
            let text = format!(
                "{}: neither text nor an image. Its bytes are in {}; inspect them with bash",
                found.summary(),
                path.display()
            );
            Ok(ToolOutput::new(true, text, json!({})))
        })
        .await
    }
}

fn show_page(
    found: &ResourceDescriptor,
    bytes: &[u8],
    offset: u64,
    room: usize,
) -> Result<ToolOutput, ToolError> {
    let text = String::from_utf8_lossy(bytes);
    let total = text.len();
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    if start >= total {
        let message = format!("{} has only {total} bytes", found.name);
        return Err(ToolError::invalid_args(message).with_details(json!({ "bytes": total })));
    }
    let start = text.floor_char_boundary(start);
    let end = start + fitting_prefix(&text[start..], room).max(1);
    let end = text.ceil_char_boundary(end);
    let shown = escape_controls(&text[start..end]);
    let gap = if shown.ends_with('\n') { "" } else { "\n" };
    let next = if end < total { format!("next: offset {end}") } else { "the end".to_owned() };
    let shown = format!("{shown}{gap}[bytes {start}-{end} of {total}; {next}]");
    let details = json!({ "id": found.id, "first_byte": start, "next_byte": end, "bytes": total });
    Ok(ToolOutput::new(true, shown, details))
}

fn unknown_resource(resources: &Resources, id: &str) -> ToolError {
    let ids: Vec<String> = resources.ids().into_iter().take(MAX_SUGGESTED).collect();
    let error = ToolError::new(Kind::NotFound, format!("this Session has no resource {id}"));
    error.with_next_action(if ids.is_empty() {
        "nothing is attached to this Session; use read for files".to_owned()
    } else {
        format!("use one of: {}", ids.join(", "))
    })
}

fn lost_resource(found: &ResourceDescriptor, reason: &ResourceReadError) -> ToolError {
    let kind = match reason {
        ResourceReadError::Missing => Kind::NotFound,
        ResourceReadError::Changed => Kind::FileChanged,
        ResourceReadError::Unreadable(_) => Kind::ReadFailed,
    };
    ToolError::new(kind, format!("{} cannot be shown: {reason}", found.name))
        .with_next_action("ask the user to attach it again")
}
