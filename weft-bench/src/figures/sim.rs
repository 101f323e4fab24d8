use super::Figure;
pub const ALL: &[Figure] = &[];
