//! Attempts through settings of git that lie outside of every repository, and of which something is in
//! the Workspace. Placeholders as in `nested_attempts`.

use super::nested_attempts::NestedAttempt;

pub const OF_THE_USER: &[NestedAttempt] = &[
    (
        "a file that the user's own settings include",
        "user: printf '[user]\\n' > team.cfg; git config --global include.path @WORK/team.cfg\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> team.cfg",
        "git status",
    ),
    (
        "one that they include on a condition",
        "user: printf '[user]\\n' > team.cfg; \
         git config --global includeIf.gitdir:@WORK/.path @WORK/team.cfg\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' > c; mv -f c team.cfg",
        "git status",
    ),
    (
        "one that they include and that is missing",
        "user: git config --global include.path @WORK/none/team.cfg\n---\n\
         mkdir none; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > none/team.cfg",
        "git status",
    ),
    (
        "one that they include and that is missing, behind a link",
        "user: git config --global include.path @WORK/none/team.cfg\n---\n\
         mkdir e; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > e/team.cfg; ln -s e none",
        "git status",
    ),
    (
        "one in a folder of the home that commands may write",
        "user: git config --global include.path '~/.cache/team.cfg'\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' > @CACHE/team.cfg",
        "git status",
    ),
    (
        "the user's own settings, a link to a file of the Workspace",
        "user: mv ~/.gitconfig gitconfig; ln -s @WORK/gitconfig ~/.gitconfig\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> gitconfig",
        "git status",
    ),
    (
        "the user's own settings behind a link, by rename",
        "user: mv ~/.gitconfig gitconfig; ln -s @WORK/gitconfig ~/.gitconfig\n---\n\
         cp gitconfig c; printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> c; mv -f c gitconfig",
        "git status",
    ),
    (
        "a link on the way to the user's own settings",
        "user: mkdir dots; mv ~/.gitconfig dots/gitconfig; ln -s dots now; \
         ln -s @WORK/now/gitconfig ~/.gitconfig\n---\n\
         mkdir e; cp dots/gitconfig e; printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> e/gitconfig; \
         rm now; ln -s e now",
        "git status",
    ),
    (
        "the user's other settings, in a folder that is a link",
        "user: mkdir git ~/.config; printf '[pull]\\n\\tff = only\\n' > git/config; \
         ln -s @WORK/git ~/.config/git\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> git/config",
        "git status",
    ),
    (
        "a file that the user's other settings include through another one",
        "user: mkdir -p ~/.config/git; printf '[include]\\n\\tpath = more\\n' > ~/.config/git/config; \
         printf '[include]\\n\\tpath = @WORK/team.cfg\\n' > ~/.config/git/more; printf '[user]\\n' > team.cfg\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> team.cfg",
        "git status",
    ),
];
