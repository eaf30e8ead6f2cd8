//! The Redis serialization protocol, versions 2 and 3: requests in, replies out.
//!
//! It knows bytes alone: no sockets, no commands, no tables.

mod decode;
mod encode;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use decode::{Arguments, Decoded, Decoder, Limits};
pub(crate) use encode::{Protocol, Writer};
