//! Notes about git settings without effect: the user's hooks and excludes file, if the sandbox hides them.
//!
//! Git silently ignores a hooks folder or excludes file that it cannot see.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::sandbox::{HiddenPath, HiddenPaths};

/// The user's git configuration files, relative to the home folder, in the order in which git reads them.
const GIT_CONFIG_FILES: &[&str] = &[".config/git/config", ".gitconfig"];

/// The keys of the section `core` that name files.
const CORE_KEYS: &[&str] = &["hooksPath", "excludesFile"];

/// The largest configuration file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A setting that names a file or a folder.
#[derive(Debug, PartialEq, Eq)]
pub struct GitSetting {
    key: &'static str,
    value: String,
}

/// Reads the user's git settings, once per Session.
#[derive(Debug, Default)]
pub struct GitNotes {
    home: Option<PathBuf>,
    is_reported: AtomicBool,
}

impl GitNotes {
    /// Reads the settings in this home folder.
    pub fn new(home: Option<PathBuf>) -> Self {
        Self { home, is_reported: AtomicBool::new(false) }
    }

    /// The settings that name files, for the first command of the Session that runs git; then empty.
    pub fn take_settings(&self, command: &str) -> Vec<GitSetting> {
        let mut words = command.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
        if !words.any(|word| word == "git") || self.is_reported.swap(true, Ordering::Relaxed) {
            return Vec::new();
        }
        let texts = self.read_config_files();
        let setting =
            |key: &&'static str| Some(GitSetting { key, value: core_value(&texts, key)? });
        CORE_KEYS.iter().filter_map(setting).collect()
    }

    /// The texts of the configuration files, in the order in which git reads them.
    fn read_config_files(&self) -> Vec<String> {
        let Some(home) = &self.home else { return Vec::new() };
        let paths = GIT_CONFIG_FILES.iter().map(|name| home.join(name));
        let is_plain = |path: &PathBuf| {
            path.metadata().is_ok_and(|found| found.is_file() && found.len() <= MAX_FILE_BYTES)
        };
        paths.filter(is_plain).filter_map(|path| std::fs::read_to_string(path).ok()).collect()
    }
}

/// A note about the settings that name hidden paths.
pub fn describe_hidden(settings: &[GitSetting], hidden: &HiddenPaths) -> Option<String> {
    let mut found = String::new();
    for GitSetting { key, value } in settings {
        let Some(HiddenPath::Credential(path) | HiddenPath::InHome(path)) = hidden.find(value)
        else {
            continue;
        };
        let comma = if found.is_empty() { "" } else { ", " };
        // Writing to a String cannot fail.
        write!(found, "{comma}core.{key} ({})", path.display()).ok();
    }
    (!found.is_empty()).then(|| {
        format!(
            "sandbox: git settings are without effect in commands, because the paths they name are \
             hidden: {found}; the user can make them visible with sandbox.read"
        )
    })
}

/// The last value of a key of the section `core`.
fn core_value(settings: &[String], key: &str) -> Option<String> {
    let mut found = None;
    for text in settings {
        let mut is_core = false;
        for line in text.lines().map(str::trim) {
            let mut rest = line;
            if let Some((heading, after)) =
                line.strip_prefix('[').and_then(|own| own.split_once(']'))
            {
                is_core = heading.trim().eq_ignore_ascii_case("core");
                rest = after.trim();
            }
            let Some((name, value)) = rest.split_once('=').filter(|_| is_core) else { continue };
            if name.trim().eq_ignore_ascii_case(key) {
                found = Some(unquote(value));
            }
        }
    }
    found.filter(|value| !value.is_empty())
}

/// A value without quotes and comments.
fn unquote(value: &str) -> String {
    let mut is_quoted = false;
    let mut plain = String::new();
    for c in value.trim().chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '#' | ';' if !is_quoted => break,
            c => plain.push(c),
        }
    }
    plain.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_counts_however_it_is_written() {
        let check = |texts: &[&str], expected: Option<&str>| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(core_value(&texts, "hooksPath").as_deref(), expected, "{texts:?}");
        };
        check(&["[core]\n\thooksPath = ~/hooks\n"], Some("~/hooks"));
        check(&["[Core] HOOKSPATH=\"/a b\" # mine\n"], Some("/a b"));
        check(&["[core]\nhooksPath = /a\n", "[core]\nhookspath = /b ; c\n"], Some("/b"));
        check(&["[core]\nhooksPath = /a\nhooksPath =\n"], None);
        check(&["[other]\nhooksPath = /a\n[core \"sub\"]\nhooksPath = /b\n"], None);
        check(&[], None);
    }
}
