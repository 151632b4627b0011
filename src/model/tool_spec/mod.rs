//! The definition of a tool in a request: name, description and the JSON Schema of its arguments.

mod schema;

pub use schema::{ToolSchema, is_built_in};
#[cfg(test)]
pub use schema::{generate_schema, store_schemas};

/// The definition of a tool in the request to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: ToolSchema,
}
