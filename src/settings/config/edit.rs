//! Edits the user's config file: one setting at a time, checked before the file is replaced as a whole.
//!
//! All other settings are kept, in their order. A file that cannot be parsed is never overwritten, so that the user can
//! correct it.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::keys::{SettingKey, canonical_name};
use super::loader::{ConfigError, LoadedConfig, check_consistency};
use super::read;
use super::tree::read_leaves;
use crate::base::error::{Explain, Explanation, Kind};
use crate::base::files::{StateDir, WriteDurability};
use crate::base::paths::Home;

/// The most symbolic links that are followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// The change to make to a setting.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingEdit {
    Set(Value),
    Unset,
}

/// The result of an edit.
#[derive(Debug)]
pub struct EditResult {
    pub file: PathBuf,
    /// Whether the file was changed.
    pub is_changed: bool,
    /// A mistake elsewhere in the file, which was there before.
    pub old_mistake: Option<String>,
}

/// Changes one setting of the user's file; nothing is written if the change makes the file invalid.
pub fn edit_setting(home: &Home, name: &str, edit: &SettingEdit) -> Result<EditResult, EditError> {
    let path = home.config_file();
    let unwritable = |source| EditError::Unwritable { path: path.clone(), source };
    let refused =
        |error| EditError::Unwritable { path: path.clone(), source: io::Error::from(error) };
    let folder = StateDir::create_root(home.path()).map_err(refused)?;
    // Without the lock, two edits at once could lose one; the kernel releases it when the process ends.
    let handle = folder.lock_handle().map_err(refused)?;
    handle.lock().map_err(unwritable)?;
    let of_file = |reason| EditError::Refused(ConfigError::for_file(&path, reason));
    let old = read::read_user_file(&path).map_err(of_file)?.unwrap_or_default();
    let (new, is_changed) = apply_edit(&old, name, edit).map_err(of_file)?;
    let still_wrong = check_edit(&old, &new, &path, home)?;
    if is_changed {
        replace_file(&path, &new).map_err(unwritable)?;
    }
    Ok(EditResult { file: path, is_changed, old_mistake: still_wrong })
}

/// Refuses a mistake that was not there before; returns a mistake that was.
fn check_edit(old: &str, new: &str, path: &Path, home: &Home) -> Result<Option<String>, EditError> {
    let mistakes = |text: &str| {
        let mut loaded = LoadedConfig::new(home.clone());
        let applied = loaded.apply_user_text(path, text);
        (applied, check_consistency(&loaded.config))
    };
    let (old_single, old_together) = mistakes(old);
    let (single, together) = mistakes(new);
    let pairs = [(single.err(), old_single.err()), (together.err(), old_together.err())];
    let mut still_wrong = None;
    for (mistake, before) in pairs {
        let Some(mistake) = mistake else { continue };
        if mistake.is_worse_than(before.as_ref()) {
            return Err(EditError::Invalid(mistake));
        }
        still_wrong.get_or_insert(mistake.to_string());
    }
    Ok(still_wrong)
}

/// The text with the change applied, and whether it differs.
fn apply_edit(old: &str, name: &str, edit: &SettingEdit) -> Result<(String, bool), String> {
    let found = read_leaves(old)?;
    let names = [name, canonical_name(name)];
    let doubled =
        found.iter().find(|leaf| found.iter().filter(|other| other.path == leaf.path).count() > 1);
    if let Some(doubled) = doubled {
        return Err(format!("`{}` is given more than once; correct that first", doubled.path));
    }
    let mut root: Map<String, Value> = if old.trim().is_empty() {
        Map::new()
    } else {
        serde_json::from_str(old).map_err(|error| format!("it is not a JSON object: {error}"))?
    };
    let before = root.clone();
    if let SettingEdit::Set(value) = edit {
        insert_value(&mut root, canonical_name(name), value.clone());
    } else {
        for name in names {
            remove_value(&mut root, name);
        }
    }
    let is_changed = root != before;
    let mut text = serde_json::to_string_pretty(&root).map_err(|error| error.to_string())?;
    text.push('\n');
    Ok((text, is_changed))
}

/// Inserts a value at its dotted name. A dotted name that is already a key of this object keeps its place.
fn insert_value(object: &mut Map<String, Value>, name: &str, value: Value) {
    if object.contains_key(name) && !matches!(object.get(name), Some(Value::Object(_))) {
        object.insert(name.to_owned(), value);
        return;
    }
    let Some((group, rest)) = name.split_once('.') else {
        object.insert(name.to_owned(), value);
        return;
    };
    let inner = object.entry(group.to_owned()).or_insert_with(|| Value::Object(Map::new()));
    if !inner.is_object() {
        // The short form of a group, such as `"sandbox": "off"`, becomes an object.
        let leaf = canonical_name(group).split_once('.').map(|(_, leaf)| leaf.to_owned());
        let old = std::mem::replace(inner, Value::Object(Map::new()));
        if let (Some(leaf), Some(fields)) = (leaf, inner.as_object_mut())
            && !old.is_null()
        {
            fields.insert(leaf, old);
        }
    }
    if let Some(fields) = inner.as_object_mut() {
        insert_value(fields, rest, value);
    }
}

/// Removes a value, and its group if that is empty then.
fn remove_value(object: &mut Map<String, Value>, name: &str) {
    let is_group = matches!(object.get(name), Some(Value::Object(_)))
        && SettingKey::find(name).is_some()
        && canonical_name(name) != name;
    if !is_group && object.shift_remove(name).is_some() {
        return;
    }
    let Some((group, rest)) = name.split_once('.') else { return };
    let Some(Value::Object(inner)) = object.get_mut(group) else { return };
    remove_value(inner, rest);
    if inner.is_empty() {
        object.shift_remove(group);
    }
}

/// Replaces the file. A symbolic link stays one, because people keep their settings in other folders.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let target = resolve_links(path)?;
    let folder = target.parent().unwrap_or(Path::new("."));
    let name = target.file_name().unwrap_or_default();
    Ok(StateDir::open_root(folder)?.replace(name, text.as_bytes(), WriteDurability::Synced)?)
}

/// Follows symbolic links to the last path, which need not exist.
fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..MAX_LINKS {
        match std::fs::read_link(&place) {
            Ok(target) => place = place.parent().unwrap_or(Path::new("")).join(target),
            // Not a link, or missing.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::NotFound
                ) =>
            {
                return Ok(place);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("its symbolic links form a loop"))
}

/// Why a setting could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The file cannot be parsed, so it is not changed.
    #[error("{0}")]
    Refused(ConfigError),
    /// The change would make the settings invalid.
    #[error("{0}")]
    Invalid(ConfigError),
    #[error("{} cannot be written", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
}

impl Explain for EditError {
    fn explain(&self) -> Explanation {
        match self {
            EditError::Refused(error) => error.explain(),
            EditError::Invalid(error) => {
                error.kind().with_details(error.details()).with_next_action(
                    "nothing was changed; `pixir config get <key> --json` says what it accepts",
                )
            }
            EditError::Unwritable { path, .. } => Kind::WriteFailed
                .with_details(serde_json::json!({ "file": path.display().to_string() }))
                .with_next_action("make the file and its folder writable"),
        }
    }
}
