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
use crate::record::resource::{Attachment, LARGEST};
use crate::tools::tool::{Desk, Editor};

/// The result of resolving a link.
#[derive(Debug)]
pub enum Linked {
    /// A file, which is attached to the prompt.
    Attached(Attachment),
    /// A folder, which is only named.
    Folder,
    /// The reason why it is not attached; follows `not attached: `.
    Refused(String),
}

/// Resolves the links of one prompt.
#[derive(Debug)]
pub struct LinkedFiles {
    workspace: Workspace,
    desk: Desk,
}

impl LinkedFiles {
    /// A resolver that stops waiting for the front-end once `late` is cancelled.
    pub fn new(
        workspace: Workspace,
        editor: Option<Arc<dyn Editor>>,
        late: CancellationToken,
    ) -> Self {
        Self { workspace, desk: Desk::new(editor, late) }
    }

    /// Resolves an absolute path; blocks on the disk and on the front-end.
    pub fn open(&self, path: &Path) -> Linked {
        let opened = match self.workspace.open_file(path) {
            Ok(opened) => opened,
            Err(WorkspaceError::Outside { .. }) => return self.open_outside(path),
            Err(error) => return refusal(&error),
        };
        let disk = match read_bounded(opened.file) {
            Ok(disk) => disk,
            Err(error) => return Linked::Refused(format!("it cannot be read: {error}")),
        };
        let real = self.workspace.root().join(&opened.path);
        let text = self.desk.unsaved(&real, &disk);
        attached(path, text.map_or(disk, String::into_bytes))
    }

    fn open_outside(&self, path: &Path) -> Linked {
        let roots = [self.workspace.root()].into_iter();
        let mut roots = roots.chain(self.workspace.further().iter().map(AsRef::as_ref));
        // A checkout can contain such a link under a harmless name.
        if let Some(target) = roots.find_map(|root| escape_by_link(root, path)) {
            let target = target.display();
            return Linked::Refused(format!("a link leads outside the workspace, to {target}"));
        }
        match self.desk.text_of(path) {
            Ok(text) => attached(path, text.into_bytes()),
            Err(reason) => Linked::Refused(format!("it is outside the workspace, and {reason}")),
        }
    }
}

fn attached(path: &Path, bytes: Vec<u8>) -> Linked {
    match Attachment::from_bytes(&path.to_string_lossy(), bytes) {
        Ok(attachment) => Linked::Attached(attachment),
        Err(error) => Linked::Refused(error.flaw.to_string()),
    }
}

fn refusal(error: &WorkspaceError) -> Linked {
    match error {
        WorkspaceError::NotRegular { what: "a folder", .. } => Linked::Folder,
        WorkspaceError::NotRegular { what, .. } => Linked::Refused(format!("it is {what}")),
        WorkspaceError::Missing { .. } => Linked::Refused("there is no such file".to_owned()),
        WorkspaceError::Read { source, .. } => {
            Linked::Refused(format!("it cannot be read: {source}"))
        }
        other => Linked::Refused(other.to_string()),
    }
}

/// Reads one byte more than an attachment may have, which shows that it is too large.
fn read_bounded(file: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
