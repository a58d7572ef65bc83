//! A budget's counts.

#[path = "../../../shim/src/model/cap/counting.rs"]
pub mod counting;
#[path = "../../../shim/src/model/cap/group_share.rs"]
pub mod group_share;
#[path = "../../../shim/src/model/cap/orders.rs"]
pub mod orders;
