//! Roles of Sessions: instructions, tools and the highest permission mode.

use parking_lot::Mutex;

use crate::record::event::PermissionMode;

/// A role of a Session.
#[derive(Debug, PartialEq, Eq)]
pub struct Role {
    /// The name in flags and in the Log.
    pub name: &'static str,
    /// Instructions for the model, added to the general ones.
    pub instructions: &'static str,
    /// The laxest permission mode of a Session with this role.
    ceiling: PermissionMode,
    /// Further settings of a role from a file; built-in roles have none.
    pub custom: Option<CustomRole>,
}

/// The settings of a role that only a file can give.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CustomRole {
    /// The purpose of the role, in one line.
    pub description: String,
    /// The model to use.
    pub model: Option<String>,
    /// The reasoning effort.
    pub effort: Option<String>,
    /// The allowed tools; `None` means all.
    pub tools: Option<Vec<String>>,
}

/// The built-in roles.
static ROLES: &[Role] = &[
    Role { name: "build", instructions: "", ceiling: PermissionMode::Auto, custom: None },
    Role {
        name: "plan",
        instructions: "You plan and change nothing. Read what matters, then answer with a plan: the \
            goal, the steps in order with the files each one touches, how to check the result, and \
            what is still unknown. Do not write the code; another agent will implement your plan.",
        ceiling: PermissionMode::ReadOnly,
        custom: None,
    },
    Role {
        name: "worker",
        instructions: "You do one task for another agent and then you are done; questions cannot be answered. Do \
            only what the task says, and check your result. Your last message is all that the other \
            agent sees: what you did, the files you changed, how you checked it (command and outcome), and what is \
            missing or uncertain. At most 30 lines; point to evidence as path:line instead of quoting it.",
        ceiling: PermissionMode::Auto,
        custom: None,
    },
    Role {
        name: "explorer",
        instructions: "You look something up for another agent and change nothing. Search widely, read what matters, \
            stop when the question is answered. Your last message is all that the other agent sees: the answer first, \
            then the evidence as path:line, then what you did not look at or could not find out. At most 30 lines; do not \
            paste files.",
        ceiling: PermissionMode::ReadOnly,
        custom: None,
    },
    Role {
        name: "reviewer",
        instructions: "You review work for another agent and change nothing. Look for what is wrong, not for what is \
            nice; check claims against the files. End with one JSON object and nothing after it: {\"verdict\": \
            \"approve\" | \"request_changes\" | \"unclear\", \"findings\": [{\"severity\": \"high\" | \"medium\" | \"low\", \
            \"where\": \"path:line\", \"what\": \"...\"}], \"limitations\": [\"what you could not check\"]}.",
        ceiling: PermissionMode::ReadOnly,
        custom: None,
    },
];

/// Tools whose only purpose is to change files of the Workspace.
const WRITERS: &[&str] = &["apply_patch", "edit", "merge_child", "write"];

/// The role for an unknown name in a Log, written by another version: it is limited to reading.
static UNKNOWN: Role =
    Role { name: "unknown", instructions: "", ceiling: PermissionMode::ReadOnly, custom: None };

/// Roles from files that were used in this process.
static INTERNED: Mutex<Vec<&'static Role>> = Mutex::new(Vec::new());

impl Role {
    /// Interns a role from a file, until the process ends: Sessions and their children share roles and
    /// never release them. The same settings give the same role, and only roles that are used are kept.
    pub fn intern(
        name: &str,
        instructions: &str,
        ceiling: &PermissionMode,
        custom: CustomRole,
    ) -> &'static Role {
        let mut chosen = INTERNED.lock();
        let known = chosen.iter().find(|role| {
            role.name == name
                && role.instructions == instructions
                && role.ceiling == *ceiling
                && role.custom.as_ref() == Some(&custom)
        });
        if let Some(known) = known {
            return known;
        }
        let role: &'static Role = Box::leak(Box::new(Role {
            name: name.to_owned().leak(),
            instructions: instructions.to_owned().leak(),
            ceiling: ceiling.clone(),
            custom: Some(custom),
        }));
        chosen.push(role);
        role
    }

    /// The same role without the tools that the parent's role forbids.
    pub fn restricted_to(&'static self, parent: &Role) -> &'static Role {
        let Some(most) = parent.custom.as_ref().and_then(|custom| custom.tools.as_ref()) else {
            return self;
        };
        let own = self.custom.clone().unwrap_or_default();
        if own.tools.iter().flatten().all(|tool| most.contains(tool)) && own.tools.is_some() {
            return self;
        }
        let tools = most.iter().filter(|tool| self.may_use(tool)).cloned().collect();
        let custom = CustomRole { tools: Some(tools), ..own };
        Role::intern(self.name, self.instructions, &self.ceiling, custom)
    }

    /// Whether the role allows a tool of that name.
    pub fn may_use(&self, tool: &str) -> bool {
        let named = self.custom.as_ref().and_then(|custom| custom.tools.as_ref());
        let is_named = named.is_none_or(|tools| tools.iter().any(|own| own == tool));
        is_named && !self.withheld_tools().contains(&tool)
    }

    /// Tools that are not offered to the model, because the role cannot write.
    pub fn withheld_tools(&self) -> &'static [&'static str] {
        match self.ceiling {
            PermissionMode::Auto | PermissionMode::Ask => &[],
            PermissionMode::ReadOnly | PermissionMode::Other(_) => WRITERS,
        }
    }

    /// The default role.
    pub fn build() -> &'static Role {
        &ROLES[0]
    }

    /// The built-in role of that name.
    pub fn find(name: &str) -> Option<&'static Role> {
        ROLES.iter().find(|role| role.name == name)
    }

    /// The role for an unknown name, limited to reading.
    pub fn unknown() -> &'static Role {
        &UNKNOWN
    }

    /// The built-in role that a Log names; a Log without a role is from the first version of Pixir.
    pub fn find_recorded(name: &str) -> &'static Role {
        if name.is_empty() { Role::build() } else { Role::find(name).unwrap_or(&UNKNOWN) }
    }

    /// The names of all built-in roles.
    pub fn names() -> Vec<&'static str> {
        ROLES.iter().map(|role| role.name).collect()
    }

    /// The permission mode that a Session of this role gets when it requests `wanted`.
    pub fn limit_mode(&self, wanted: &PermissionMode) -> PermissionMode {
        stricter_mode(&self.ceiling, wanted)
    }
}

/// The stricter of two permission modes; an unknown one counts as the strictest.
pub fn stricter_mode(one: &PermissionMode, other: &PermissionMode) -> PermissionMode {
    let strictness = |mode: &PermissionMode| match mode {
        PermissionMode::Auto => 0,
        PermissionMode::Ask => 1,
        PermissionMode::ReadOnly | PermissionMode::Other(_) => 2,
    };
    if strictness(one) >= strictness(other) { one.clone() } else { other.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_limits_and_never_widens() {
        let plan = Role::find("plan").unwrap();
        let build = Role::build();
        for mode in [PermissionMode::Auto, PermissionMode::Ask, PermissionMode::ReadOnly] {
            assert_eq!(plan.limit_mode(&mode), PermissionMode::ReadOnly);
            assert_eq!(build.limit_mode(&mode), mode);
        }
        assert_eq!(Role::find_recorded("").name, "build");
        assert_eq!(
            Role::find_recorded("from_the_future").limit_mode(&PermissionMode::Auto),
            PermissionMode::ReadOnly
        );
    }

    #[test]
    fn a_role_of_a_file_is_one_and_the_same_however_often_it_is_chosen() {
        let tools = Some(vec!["read".to_owned()]);
        let custom = CustomRole { tools, ..CustomRole::default() };
        let chosen = |words| Role::intern("scribe", words, &PermissionMode::Ask, custom.clone());
        let scribe = chosen("Write docs.");
        assert!(std::ptr::eq(scribe, chosen("Write docs.")));
        assert!(!std::ptr::eq(scribe, chosen("Write tests.")));
        assert!(scribe.may_use("read") && !scribe.may_use("bash"));
        assert_eq!(scribe.limit_mode(&PermissionMode::Auto), PermissionMode::Ask);
        assert!(!Role::find("plan").unwrap().may_use("write") && Role::build().may_use("write"));
    }

    #[test]
    fn a_child_has_no_tool_that_its_parent_has_not() {
        let of = |tools: &[&str]| {
            let tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
            let custom = CustomRole { tools: Some(tools), ..CustomRole::default() };
            Role::intern("some", "Do it.", &PermissionMode::Auto, custom)
        };
        let parent = of(&["read", "write", "spawn_agent"]);
        let worker = Role::find("worker").unwrap().restricted_to(parent);
        assert_eq!(
            (worker.name, worker.instructions),
            ("worker", Role::find("worker").unwrap().instructions)
        );
        assert!(worker.may_use("write") && !worker.may_use("bash"));
        let explorer = Role::find("explorer").unwrap().restricted_to(worker);
        assert!(
            explorer.may_use("read") && !explorer.may_use("write") && !explorer.may_use("bash")
        );
        assert_eq!(explorer.limit_mode(&PermissionMode::Auto), PermissionMode::ReadOnly);
        let narrow = of(&["read", "bash"]).restricted_to(parent);
        assert!(narrow.may_use("read") && !narrow.may_use("bash") && !narrow.may_use("write"));
        let same = of(&["read"]);
        assert!(std::ptr::eq(same, same.restricted_to(parent)));
        assert!(std::ptr::eq(parent, parent.restricted_to(Role::build())));
    }

    #[test]
    fn instructions_are_short_and_plain() {
        for role in ROLES {
            assert!(role.instructions.len() < 600 && role.instructions.is_ascii(), "{}", role.name);
        }
    }
}
