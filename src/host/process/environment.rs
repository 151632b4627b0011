//! The environment of commands: an allow-list of Pixir's own, and the lookup of programs on PATH.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::base::secret::{is_provider_key, is_secret_name};
use crate::host::sandbox::FOLDER_VARIABLES;

/// Allowed variables about the user, the locale and proxies; those that name folders are in [`FOLDER_VARIABLES`].
const ALLOWED_VARIABLES: &[&str] = &[
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TERM",
    "TMPDIR",
    "TZ",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
];

/// Allowed prefixes; a name with such a prefix must not look like that of a secret.
const ALLOWED_PREFIXES: &[&str] = &["LC_", "XDG_"];

/// Variables that every command gets, so that no program waits for input at a terminal. In the sandbox the
/// folders above a Workspace are on another device, on which git would not search for its repository.
const FIXED_VARIABLES: &[(&str, &str)] = &[
    ("PIXIR", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_DISCOVERY_ACROSS_FILESYSTEM", "1"),
    ("PAGER", "cat"),
];

/// The environment of every command: allowed variables, those that the user `named`, and fixed ones.
pub fn command_environment(
    full: &[(OsString, OsString)],
    named: &[String],
) -> Vec<(OsString, OsString)> {
    let is_set = |name: &OsStr| FIXED_VARIABLES.iter().any(|(set, _)| name == *set);
    let passes = |name: &OsStr| {
        let allowed =
            ALLOWED_VARIABLES.iter().chain(FOLDER_VARIABLES).any(|allowed| name == *allowed);
        let prefix = |prefix: &&str| name.as_bytes().starts_with(prefix.as_bytes());
        let by_prefix =
            ALLOWED_PREFIXES.iter().any(prefix) && !is_secret_name(&name.to_string_lossy());
        let named = named.iter().any(|named| name == named.as_str());
        (allowed || by_prefix || named)
            && !is_provider_key(&name.to_string_lossy())
            && !is_set(name)
    };
    let kept = full.iter().filter(|(name, _)| passes(name)).cloned();
    kept.chain(FIXED_VARIABLES.iter().map(|(name, value)| (name.into(), value.into()))).collect()
}

/// The shell that runs commands: the configured one, else `bash` from PATH, else `/bin/sh`.
pub fn find_shell(environment: &[(OsString, OsString)], configured: Option<&Path>) -> PathBuf {
    if let Some(shell) = configured {
        return shell.to_owned();
    }
    find_on_path("bash", environment).unwrap_or_else(|| "/bin/sh".into())
}

/// Finds a program in the absolute folders of PATH. Relative ones are skipped, because they would find
/// programs that a repository planted.
pub fn find_on_path(name: &str, environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
    let folders = path.into_iter().flat_map(std::env::split_paths);
    let mut places = folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(name));
    places.find(|place| is_program(place))
}

/// Whether the path is an executable file.
pub fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_and_named_variables_pass_and_provider_keys_never() {
        let full: Vec<(OsString, OsString)> = [
            "PATH",
            "LC_ALL",
            "LC_API_TOKEN",
            "XDG_CACHE_HOME",
            "XDG_ACTIVATION_TOKEN",
            "AWS_SECRET",
            "MY_VAR",
            "OPENAI_API_KEY",
            "LINES",
        ]
        .map(|name| (name.into(), "value".into()))
        .into();
        let named = ["MY_VAR".to_owned(), "OPENAI_API_KEY".to_owned()];
        let kept: Vec<_> =
            command_environment(&full, &named).into_iter().map(|(name, _)| name).collect();
        let expected = [
            "PATH",
            "LC_ALL",
            "XDG_CACHE_HOME",
            "MY_VAR",
            "PIXIR",
            "GIT_TERMINAL_PROMPT",
            "GIT_DISCOVERY_ACROSS_FILESYSTEM",
            "PAGER",
        ];
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_system_without_bash_gets_sh() {
        assert_eq!(
            find_shell(&[("PATH".into(), "/nowhere:relative".into())], None),
            Path::new("/bin/sh")
        );
        assert_eq!(find_shell(&[], Some(Path::new("/opt/zsh"))), Path::new("/opt/zsh"));
    }
}
