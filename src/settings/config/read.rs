//! Reads config files; refuses devices, pipes and huge files.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::base::files::open_regular;
use crate::base::paths;

/// The largest accepted config file, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Reads the user's file; it may be a symbolic link, because people keep their settings in other folders.
pub fn read_user_file(path: &Path) -> Result<Option<String>, String> {
    match open_regular(path) {
        Ok(file) => read_text(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // The file is not a regular one; the error is not from the system.
        Err(error) if error.raw_os_error().is_none() => Err(error.to_string()),
        Err(error) => Err(format!("it cannot be opened: {error}")),
    }
}

/// Reads the Workspace's file; `.pixir` and the file must not be symbolic links, which could lead elsewhere.
pub fn read_workspace_file(workspace: &Path) -> Result<Option<String>, String> {
    let folder_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(CWD, paths::state_folder(workspace), folder_flags, Mode::empty());
    let Some(folder) = missing_as_none(folder)? else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, "config.json", flags, Mode::empty());
    missing_as_none(file)?.map_or(Ok(None), read_text)
}

/// Reads `.mcp.json`, the MCP servers of a Workspace; the file must not be a symbolic link.
pub fn read_mcp_json(workspace: &Path) -> Result<Option<String>, String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(CWD, paths::workspace_mcp_file(workspace), flags, Mode::empty());
    missing_as_none(file)?.map_or(Ok(None), read_text)
}

fn missing_as_none(opened: rustix::io::Result<OwnedFd>) -> Result<Option<File>, String> {
    match opened {
        Ok(file) => Ok(Some(File::from(file))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(rustix::io::Errno::LOOP) => Err("it is a symbolic link".into()),
        Err(error) => Err(format!("it cannot be opened: {}", io::Error::from(error))),
    }
}

fn read_text(file: File) -> Result<Option<String>, String> {
    let unreadable = |error: io::Error| format!("it cannot be read: {error}");
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err("it is not a regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err("it is larger than 1 MiB".into());
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    // Some editors begin a file with a byte order mark, which is not JSON.
    Ok(Some(text.trim_start_matches('\u{feff}').to_owned()))
}
