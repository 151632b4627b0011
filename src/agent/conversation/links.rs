//! Links: files that a front-end names in a prompt without sending them.
//!
//! A file in the Workspace, or in an extra root, is opened by descriptor, so that no link leads out. The text of a file
//! elsewhere comes from the front-end, which shows it to its user, or not at all: Pixir does not open it.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::base::link_escape::escape_by_link;
use crate::host::workspace::{Workspace, WorkspaceError};
use crate::record::resource::{Attachment, MAX_ATTACHMENT_BYTES};
use crate::tools::tool::{Editor, EditorBridge};

/// The result of resolving a link.
#[derive(Debug)]
pub enum ResolvedLink {
    /// A file, which is attached to the prompt.
    Attached(Attachment),
    /// A folder, which is only named.
    Folder,
    /// The reason why the link is not attached; follows `not attached: `.
    Refused(String),
}

/// Resolves the links of one prompt.
#[derive(Debug)]
pub struct LinkResolver {
    workspace: Workspace,
    editor_bridge: EditorBridge,
}

impl LinkResolver {
    /// A resolver that stops waiting for the front-end once `cancel` is cancelled.
    pub fn new(
        workspace: Workspace,
        editor: Option<Arc<dyn Editor>>,
        cancel: CancellationToken,
    ) -> Self {
        Self { workspace, editor_bridge: EditorBridge::new(editor, cancel) }
    }

    /// Resolves an absolute path; blocks on the disk and on the front-end.
    pub fn resolve(&self, path: &Path) -> ResolvedLink {
        let opened = match self.workspace.open_file(path) {
            Ok(opened) => opened,
            Err(WorkspaceError::Outside { .. }) => return self.resolve_outside(path),
            Err(error) => return refuse_link(&error),
        };
        let disk = match read_bounded(opened.file) {
            Ok(disk) => disk,
            Err(error) => return ResolvedLink::Refused(format!("it cannot be read: {error}")),
        };
        let real = self.workspace.root().join(&opened.path);
        let text = self.editor_bridge.unsaved_text(&real, &disk);
        attach_bytes(path, text.map_or(disk, String::into_bytes))
    }

    fn resolve_outside(&self, path: &Path) -> ResolvedLink {
        let roots = [self.workspace.root()].into_iter();
        let mut roots = roots.chain(self.workspace.extra_roots().iter().map(AsRef::as_ref));
        // A checkout can contain such a link under a harmless name.
        if let Some(target) = roots.find_map(|root| escape_by_link(root, path)) {
            let target = target.display();
            return ResolvedLink::Refused(format!(
                "a link leads outside the workspace, to {target}"
            ));
        }
        match self.editor_bridge.read_buffer(path) {
            Ok(text) => attach_bytes(path, text.into_bytes()),
            Err(reason) => {
                ResolvedLink::Refused(format!("it is outside the workspace, and {reason}"))
            }
        }
    }
}

fn attach_bytes(path: &Path, bytes: Vec<u8>) -> ResolvedLink {
    match Attachment::from_bytes(&path.to_string_lossy(), bytes) {
        Ok(attachment) => ResolvedLink::Attached(attachment),
        Err(error) => ResolvedLink::Refused(error.flaw.to_string()),
    }
}

fn refuse_link(error: &WorkspaceError) -> ResolvedLink {
    match error {
        WorkspaceError::NotRegular { what: "a folder", .. } => ResolvedLink::Folder,
        WorkspaceError::NotRegular { what, .. } => ResolvedLink::Refused(format!("it is {what}")),
        WorkspaceError::Missing { .. } => ResolvedLink::Refused("there is no such file".to_owned()),
        WorkspaceError::Read { source, .. } => {
            ResolvedLink::Refused(format!("it cannot be read: {source}"))
        }
        other => ResolvedLink::Refused(other.to_string()),
    }
}

/// Reads one byte more than an attachment may have, which shows that it is too large.
fn read_bounded(file: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_ATTACHMENT_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
