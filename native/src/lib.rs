//! The compiled twin of `halfmoon.columns`: what touches each message. Bytes in, columns or bytes out.
//!
//! The Python functions are the reference; names and meanings are theirs. Only `python` knows of the interpreter. Nothing here
//! panics, whatever bytes come, calls back into Python, or keeps anything but what a columns object owns.

// Tests count on small data: what they add up cannot overflow. The library itself is checked without them, as it is shipped.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod answers;
pub mod batch;
pub mod checking;
pub mod completions;
pub mod filtering;
pub mod frames;
pub mod headers;
mod json;
pub mod keys;
pub mod messages;
pub mod properties;
#[cfg(feature = "python")]
mod python;
pub mod reader;
pub mod record;
pub mod requests;
pub mod rows;
pub mod signing;
pub mod states;
