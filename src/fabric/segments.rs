//! Segments of an operation, split into the parts of one request.

use super::Segment;

/// A position in an operation's segments.
#[derive(Clone, Copy, Default)]
pub struct Cursor {
    segment: usize,
    offset: u64,
}

impl Cursor {
    /// Whether no segment follows the position.
    #[inline]
    pub fn is_at_end(&self, segments: &[Segment]) -> bool {
        self.segment == segments.len()
    }
}

/// The parts of the next bytes. Empty segments are parts, too, even after the last byte.
pub struct Parts<'a> {
    segments: &'a [Segment],
    at: Cursor,
    left: u64,
}

impl<'a> Parts<'a> {
    /// The parts of the next `most` bytes.
    #[inline]
    pub fn new(segments: &'a [Segment], from: Cursor, most: u64) -> Parts<'a> {
        Parts { segments, at: from, left: most }
    }

    /// The bytes that were not returned yet, and the position after the others.
    #[inline]
    pub fn rest(&self) -> (u64, Cursor) {
        (self.left, self.at)
    }
}

impl Iterator for Parts<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let segment = self.segments.get(self.at.segment).filter(|one| self.left > 0 || one.len == 0)?;
        let (offset, len) = (self.at.offset, (segment.len - self.at.offset).min(self.left));
        self.left -= len;
        self.at.offset += len;
        if self.at.offset == segment.len {
            self.at = Cursor { segment: self.at.segment + 1, offset: 0 };
        }
        let (local, remote) = (segment.local.wrapping_add(offset), segment.remote.wrapping_add(offset));
        Some(Segment { local, remote, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_consecutive_and_cover_all_bytes() {
        let segments: Vec<Segment> = [(100, 10), (200, 0), (300, 7), (400, 0)]
            .map(|(local, len)| Segment { local, remote: local + 5000, len })
            .into();
        let take = |from, most, count| {
            let mut parts = Parts::new(&segments, from, most);
            let taken: Vec<(u64, u64)> = parts.by_ref().take(count).map(|one| (one.local, one.len)).collect();
            (taken, parts.rest())
        };
        let (first, (left, at)) = take(Cursor::default(), 4, 9);
        assert!(first == [(100, 4)] && left == 0 && !at.is_at_end(&segments));
        let (second, (left, at)) = take(at, 8, 9);
        assert!(second == [(104, 6), (200, 0), (300, 2)] && left == 0);
        let (third, (left, at)) = take(at, 100, 1);
        assert!(third == [(302, 5)] && left == 95 && !at.is_at_end(&segments));
        let (last, (_, at)) = take(at, 0, 9);
        assert!(last == [(400, 0)] && at.is_at_end(&segments));
        assert_eq!(Parts::new(&segments, Cursor::default(), 17).count(), 4);
    }
}
