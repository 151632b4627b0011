//! Names of the values of an enum, in Logs, JSON, settings and messages.

/// Gives an enum the method `name`, from one table.
macro_rules! names {
    ($type:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        impl $type {
            /// The stable name of the value.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $text,)+ }
            }
        }
    };
}

pub(crate) use names;
