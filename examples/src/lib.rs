//! What the examples share: a shop whose services are pretended and print what they do.

pub mod shop;
