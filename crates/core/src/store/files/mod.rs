//! Small files of a store, and the rights to use it: superblock, head, lock, holds, states,
//! the pairing with a cold directory, names of the files of rows.

pub(in crate::store) mod class_file;
pub(in crate::store) mod head;
pub(in crate::store) mod holds;
pub(in crate::store) mod leftovers;
pub(in crate::store) mod lock;
pub(in crate::store) mod pairing;
pub(in crate::store) mod pins;
pub(in crate::store) mod place;
pub(in crate::store) mod state;
pub(in crate::store) mod superblock;
