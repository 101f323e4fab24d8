//! What NICs whose connections are our own do alike: `tcp`, and `ofi` where libfabric connects endpoints (verbs).

pub mod routes;
