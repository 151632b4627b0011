//! Images: stores an image file of the Workspace as a Resource, and shows it to the model for the Turn.

use std::io::Read;
use std::os::unix::fs::FileExt;

use serde_json::json;

use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::workspace::{OpenFile, WorkspaceError};
use crate::record::event::ResourceDescriptor;
use crate::record::resource::{
    AttachmentProblem, ContentKind, MAX_IMAGE_BYTES, MAX_TURN_IMAGE_BYTES, MAX_TURN_IMAGES,
    Resources, ShowResult, detect_content, display_name, is_image,
};
use crate::tools::files::read_tracker::{ReadFingerprint, ReadTracker};
use crate::tools::tool::ToolOutput;

/// How many bytes are read to detect an image.
const SNIFF_BYTES: usize = 16;

/// Shows a file that is an image. `None` for any other file, whose read position is unchanged.
pub fn read_image(
    opened: &OpenFile,
    resources: &Resources,
    read_tracker: &ReadTracker,
) -> Result<Option<ToolOutput>, ToolError> {
    let mut head = [0; SNIFF_BYTES];
    let count = opened.file.read_at(&mut head, 0).unwrap_or_default();
    if !is_image(&head[..count]) {
        return Ok(None);
    }
    let path = &opened.path;
    let refused = |flaw: AttachmentProblem| {
        let message = format!("{} cannot be shown: {flaw}", path.display());
        ToolError::new(Kind::BinaryFile, message).with_next_action(flaw.next_action())
    };
    let size = u64::try_from(opened.stat.st_size).unwrap_or_default();
    if size > MAX_IMAGE_BYTES {
        let what = "an image";
        return Err(refused(AttachmentProblem::TooLarge {
            bytes: size,
            limit: MAX_IMAGE_BYTES,
            what,
        }));
    }
    let mut bytes = Vec::new();
    (&opened.file)
        .take(MAX_IMAGE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| ToolError::from(WorkspaceError::Read { path: path.clone(), source }))?;
    let ContentKind::Image(image) = detect_content(&bytes).map_err(refused)? else {
        return Ok(None);
    };
    let descriptor =
        resources.store_image(&display_name(path), &bytes, image).map_err(|error| {
            ToolError::new(Kind::WriteFailed, format!("the image cannot be stored: {error}"))
        })?;
    read_tracker.record_file(path, ReadFingerprint::new(&bytes, &opened.stat));
    let mut output = show_image(resources, &descriptor)?;
    output.details["path"] = path.to_string_lossy().into();
    output.details["sha256"] = descriptor.sha256.into();
    Ok(Some(output))
}

/// Shows a stored image for the rest of the Turn. The requests of the Turn carry the images that are
/// named in `details`.
pub fn show_image(
    resources: &Resources,
    image: &ResourceDescriptor,
) -> Result<ToolOutput, ToolError> {
    let (id, summary) = (&image.id, image.summary());
    match resources.try_show_image(image) {
        ShowResult::Now => {
            let text = format!("image {summary}, resource {id}");
            Ok(ToolOutput::new(true, text, json!({ "resource": image })))
        }
        ShowResult::Already => {
            let text = format!("image {summary}, resource {id}: it is already shown in this Turn");
            Ok(ToolOutput::new(true, text, json!({})))
        }
        ShowResult::Full => {
            let message = format!(
                "{summary} is not shown: a Turn shows at most {MAX_TURN_IMAGES} images and {MAX_TURN_IMAGE_BYTES} \
                 bytes of them"
            );
            Err(ToolError::invalid_args(message)
                .with_next_action("continue with the images shown so far, or answer"))
        }
    }
}
