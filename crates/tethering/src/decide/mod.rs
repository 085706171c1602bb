//! The rules, as pure functions: `machine` computes the next state, `obstacles` says what stands
//! against tethering, `namespaces`, `homecoming` and `refusals` say what follows for namespaces,
//! pods and their controllers.

pub mod homecoming;
pub mod machine;
pub mod namespaces;
pub mod obstacles;
pub mod refusals;
