//! Names, parsed once at the edge: of workflows, instances, events, steps and hooks.
//!
//! A value of one of these types is valid; nothing behind the edge checks again.

use std::fmt;
use std::sync::Arc;

use crate::{Code, Limits, Refusal};

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// A name that was valid when it was stored; limits may have changed since.
            pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        /// Quoted, as messages for people show it: `"charge card"`.
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// The name of a registered workflow.
    WorkflowName
);
name!(
    /// The id of an instance, unique within its workflow.
    InstanceId
);
name!(
    /// The type of an event, matched by `wait_for_event`.
    EventType
);
name!(
    /// The name of a step: its identity within a run.
    StepName
);

name!(
    /// The name of a hook: which handler runs for it.
    HookName
);
name!(
    /// A set of hooks that is processed by itself.
    HookNamespace
);

impl WorkflowName {
    /// Parses a workflow name.
    ///
    /// ```
    /// use piton_core::{Limits, WorkflowName};
    /// assert!(WorkflowName::parse("checkout", &Limits::default()).is_ok());
    /// assert!(WorkflowName::parse("check out", &Limits::default()).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// `INVALID_WORKFLOW_NAME`, naming the limit and the value.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, Refusal> {
        let max = limits.workflow_name_bytes_max;
        check_identifier("workflow name", Code::InvalidWorkflowName, text, max).map(Self)
    }
}

impl InstanceId {
    /// Parses an instance id.
    ///
    /// ```
    /// use piton_core::{InstanceId, Limits};
    /// assert!(InstanceId::parse("order-123", &Limits::default()).is_ok());
    /// assert!(InstanceId::parse("order/123", &Limits::default()).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// `INVALID_INSTANCE_ID`, naming the limit and the value.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, Refusal> {
        let max = limits.instance_id_bytes_max;
        check_identifier("instance id", Code::InvalidInstanceId, text, max).map(Self)
    }
}

impl EventType {
    /// Parses an event type.
    ///
    /// ```
    /// use piton_core::{EventType, Limits};
    /// assert!(EventType::parse("paid", &Limits::default()).is_ok());
    /// assert!(EventType::parse("", &Limits::default()).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// `INVALID_EVENT_TYPE`, naming the limit and the value.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, Refusal> {
        let max = limits.event_type_bytes_max;
        check_identifier("event type", Code::InvalidEventType, text, max).map(Self)
    }
}

impl HookName {
    /// Parses the name of a hook, such as `user.created`.
    ///
    /// # Errors
    ///
    /// `INVALID_HOOK_NAME`, naming the limit and the value.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, Refusal> {
        check_dotted("hook name", text, limits).map(Self)
    }
}

impl HookNamespace {
    /// Parses a namespace of hooks.
    ///
    /// # Errors
    ///
    /// `INVALID_HOOK_NAME`, naming the limit and the value.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, Refusal> {
        check_dotted("hook namespace", text, limits).map(Self)
    }
}

/// An identifier, with dots between its parts.
fn check_dotted(what: &str, text: &str, limits: &Limits) -> Result<Arc<str>, Refusal> {
    let max = limits.hook_name_bytes_max;
    if text.starts_with('.') || text.ends_with('.') || text.contains("..") {
        let message = format!("{what} {text:?} may have single dots only between its parts");
        return Err(Refusal::new(Code::InvalidHookName, message));
    }
    check_length(what, Code::InvalidHookName, text, max)?;
    if !is_identifier(&text.replace('.', "_")) {
        let message = format!(
            "{what} {text:?} may have only letters, digits, `_`, `-` and dots between its parts, and must not start with `-`"
        );
        return Err(Refusal::new(Code::InvalidHookName, message));
    }
    Ok(Arc::from(text))
}

impl StepName {
    /// Parses a step name; white space around it does not count.
    ///
    /// ```
    /// use piton_core::{Limits, StepName};
    /// assert_eq!(StepName::parse(" charge card ", &Limits::default())?.as_str(), "charge card");
    /// # Ok::<(), piton_core::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `INVALID_STEP_NAME`, naming the limit and the value.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, Refusal> {
        let trimmed = text.trim();
        let max = limits.step_name_bytes_max;
        let refuse = |message| Err(Refusal::new(Code::InvalidStepName, message));
        if trimmed.is_empty() {
            return refuse("a step name is empty; give each step a name of its own".to_owned());
        }
        if trimmed.len() > max {
            let (shown, len) = (shorten(trimmed), trimmed.len());
            return refuse(format!(
                "step name {shown:?} is {len} bytes long, more than the limit of {max}"
            ));
        }
        Ok(Self(Arc::from(trimmed)))
    }
}

/// Checks the pattern and the length.
fn check_identifier(what: &str, code: Code, text: &str, max: usize) -> Result<Arc<str>, Refusal> {
    check_length(what, code, text, max)?;
    if !is_identifier(text) {
        let message = format!(
            "{what} {text:?} may have only letters, digits, `_` and `-`, and must not start with `-`"
        );
        return Err(Refusal::new(code, message));
    }
    Ok(Arc::from(text))
}

/// Whether it is `^[a-zA-Z0-9_][a-zA-Z0-9_-]*$`.
fn is_identifier(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(allowed)
}

fn check_length(what: &str, code: Code, text: &str, max: usize) -> Result<(), Refusal> {
    if text.is_empty() {
        return Err(Refusal::new(code, format!("{what} is empty")));
    }
    if text.len() > max {
        let (shown, len) = (shorten(text), text.len());
        let message = format!("{what} {shown:?} is {len} bytes long, more than the limit of {max}");
        return Err(Refusal::new(code, message));
    }
    Ok(())
}

/// The start of a text that is too long to be repeated in an error.
fn shorten(text: &str) -> String {
    text.chars().take(40).chain("…".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_follow_the_pattern() {
        let limits = Limits::default();
        for good in ["a", "0", "_x", "order-123", "A_b-C", &"x".repeat(100)] {
            assert_eq!(InstanceId::parse(good, &limits).expect(good).as_str(), good);
        }
        for bad in ["", "-a", "a b", "ä", "a/b", "a\0", &"x".repeat(101)] {
            let refusal = InstanceId::parse(bad, &limits).expect_err(bad);
            assert_eq!(refusal.code, Code::InvalidInstanceId);
        }
        assert_eq!(WorkflowName::parse(&"w".repeat(64), &limits).map(|n| n.0.len()), Ok(64));
        let refusal = WorkflowName::parse(&"w".repeat(65), &limits).expect_err("too long");
        assert!(refusal.message.contains("65 bytes") && refusal.message.contains("64"));
        assert_eq!(EventType::parse("", &limits).expect_err("empty").code, Code::InvalidEventType);
    }

    #[test]
    fn names_of_hooks_may_have_dots_and_their_refusal_says_so() {
        let limits = Limits::default();
        for good in ["paid", "order.paid", "a.b-c._d", &"x".repeat(100)] {
            assert_eq!(HookName::parse(good, &limits).expect(good).as_str(), good);
        }
        for bad in ["", ".a", "a.", "a..b", "-a", "a b", "ä", &"x".repeat(101)] {
            let refusal = HookNamespace::parse(bad, &limits).expect_err(bad);
            assert_eq!(refusal.code, Code::InvalidHookName, "{bad}");
        }
        let refusal = HookName::parse("order paid", &limits).expect_err("a blank");
        assert_eq!(
            refusal.message,
            "hook name \"order paid\" may have only letters, digits, `_`, `-` and dots between its parts, and must not \
             start with `-`"
        );
        let long = format!("a.{}", "x".repeat(99));
        let refusal = HookName::parse(&long, &limits).expect_err("too long");
        assert!(refusal.message.starts_with("hook name \"a.xx"), "{}", refusal.message);
    }

    #[test]
    fn step_names_are_trimmed_and_bounded() {
        let limits = Limits::default();
        assert_eq!(
            StepName::parse("  charge card\n", &limits).map(|n| n.to_string()),
            Ok("charge card".into())
        );
        assert!(StepName::parse(&"s".repeat(256), &limits).is_ok());
        for bad in ["", "   ", &"s".repeat(257)] {
            let refusal = StepName::parse(bad, &limits).expect_err("invalid");
            assert_eq!(refusal.code, Code::InvalidStepName);
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_told_by_its_beginning() {
        let name = format!("{}{}", "s".repeat(40), "t".repeat(300));
        let refusal = StepName::parse(&name, &Limits::default()).expect_err("too long");
        assert!(refusal.message.contains(&format!("{}…", "s".repeat(40))), "{}", refusal.message);
    }
}
