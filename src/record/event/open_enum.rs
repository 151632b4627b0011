//! Enums of text values that keep unknown values: values of other versions are written back unchanged.

/// Declares an open enum: the values that this build knows, and `Other` for the rest.
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant,)*
            /// A value of another version.
            Other(String),
        }
        impl $name {
            /// The value in the Log.
            pub fn as_str(&self) -> &str {
                match self { $($name::$variant => $text,)* $name::Other(text) => text }
            }
            /// Reads the value of a Log, a flag or a config file.
            pub fn from_text(text: &str) -> Self {
                match text { $($text => $name::$variant,)* other => $name::Other(other.to_owned()) }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
        /// Any string, because another version may know more values.
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "examples": [$($text,)*] })
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::from_text(&<std::borrow::Cow<'_, str> as serde::Deserialize>::deserialize(deserializer)?))
            }
        }
    };
}

pub(super) use open_enum;
