//! Images: stores an image file of the Workspace as a Resource, and shows it to the model for the Turn.

use std::io::Read;
use std::os::unix::fs::FileExt;

use serde_json::json;

use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::workspace::{OpenFile, WorkspaceError};
use crate::record::event::Descriptor;
use crate::record::resource::{
    Flaw, IMAGES_SUM, LARGEST_IMAGE, MOST_IMAGES, Nature, Shelf, Showing, is_image, look,
    plain_name,
};
use crate::tools::files::read_tracker::{Print, Seen};
use crate::tools::tool::ToolOutput;

/// How many bytes are read to detect an image.
const HEAD: usize = 16;

/// Shows a file that is an image; `None` if it is none, and then the file position is unchanged.
pub fn read(
    opened: &OpenFile,
    shelf: &Shelf,
    seen: &Seen,
) -> Result<Option<ToolOutput>, ToolError> {
    let mut head = [0; HEAD];
    let count = opened.file.read_at(&mut head, 0).unwrap_or_default();
    if !is_image(&head[..count]) {
        return Ok(None);
    }
    let path = &opened.path;
    let refused = |flaw: Flaw| {
        let message = format!("{} cannot be shown: {flaw}", path.display());
        ToolError::new(Kind::BinaryFile, message).next(flaw.next_action())
    };
    let size = u64::try_from(opened.stat.st_size).unwrap_or_default();
    if size > LARGEST_IMAGE {
        let what = "an image";
        return Err(refused(Flaw::TooLarge { bytes: size, limit: LARGEST_IMAGE, what }));
    }
    let mut bytes = Vec::new();
    (&opened.file)
        .take(LARGEST_IMAGE + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| ToolError::from(WorkspaceError::Read { path: path.clone(), source }))?;
    let Nature::Image(image) = look(&bytes).map_err(refused)? else { return Ok(None) };
    let descriptor = shelf.keep_image(&plain_name(path), &bytes, image).map_err(|error| {
        ToolError::new(Kind::WriteFailed, format!("the image cannot be stored: {error}"))
    })?;
    seen.note(path, Print::of(&bytes, &opened.stat));
    let mut output = show(shelf, &descriptor)?;
    output.details["path"] = path.to_string_lossy().into();
    output.details["sha256"] = descriptor.sha256.into();
    Ok(Some(output))
}

/// Shows a stored image for the rest of the Turn. The requests of the Turn carry the images that are
/// named in `details`.
pub fn show(shelf: &Shelf, image: &Descriptor) -> Result<ToolOutput, ToolError> {
    let (id, summary) = (&image.id, image.summary());
    match shelf.show(image) {
        Showing::Now => {
            let text = format!("image {summary}, resource {id}");
            Ok(ToolOutput::new(true, text, json!({ "resource": image })))
        }
        Showing::Already => {
            let text = format!("image {summary}, resource {id}: it is already shown in this Turn");
            Ok(ToolOutput::new(true, text, json!({})))
        }
        Showing::Full => {
            let message = format!(
                "{summary} is not shown: a Turn shows at most {MOST_IMAGES} images and {IMAGES_SUM} \
                 bytes of them"
            );
            Err(ToolError::invalid(message).next("go on with what you have seen, or answer"))
        }
    }
}
