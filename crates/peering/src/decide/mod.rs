//! The rules of peering: pure functions with time as an argument. Read [`peer`] first.
//!
//! ```text
//!   peer                one peer:  its objects here ── plan ──▶ what to do about it
//!   peer_status         what its ForeignCluster shows
//!   heartbeats          whether it is alive, from its leases and answers
//!   consumer side:      session_view      the state of a session, as conditions
//!                       credential        when a credential is renewed, and which grants are believed
//!                       gateways          through which gateways a provider is called
//!                       answers           how much is read of a provider's answers
//!   provider side:      access            whether a signed request is granted
//!                       tokens            whether a token for the first contact is valid
//!                       consumer_records  the ForeignClusters of consumers, and what policies require
//!                       tenancy_kinds     what is cleared when a tenancy ends
//!                       tunnel_clients    who may come through our tunnel
//!   both:               namespace, manifests  the objects of a peering, as they are read and written
//!                       addresses         how others reach this cluster
//!                       discovery, search_domains  what is called and looked up, and when again
//! ```
//! Which clusters count as found is in the crate `liqo-discovery`.

pub mod access;
pub mod addresses;
pub mod answers;
pub mod consumer_records;
pub mod credential;
pub mod discovery;
pub mod gateways;
pub mod heartbeats;
pub mod manifests;
pub mod namespace;
pub mod peer;
pub mod peer_status;
pub mod search_domains;
pub mod session_view;
pub mod tenancy_kinds;
pub mod tokens;
pub mod tunnel_clients;
