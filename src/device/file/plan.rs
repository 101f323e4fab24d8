//! How the bytes of a job move between memory and a file, without I/O.
//!
//! Direct I/O takes whole blocks and aligned memory. Of a write, the whole blocks go directly; its
//! head and tail go through the page cache, which changes no byte beside them: two writers of one
//! block lose nothing. A read takes the blocks around its bytes.

/// Bytes of an aligned buffer.
pub const BOUNCE: u64 = 256 << 10;

/// Bytes of a file, and of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub memory: u64,
    pub offset: u64,
    pub len: u64,
}

/// What direct I/O of a file asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Powers of two: the alignment of offsets and lengths, and that of memory.
    pub block: u64,
    pub memory: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Through the page cache.
    Cached,
    /// Between the memory and the disk.
    Direct,
    /// Directly, by an aligned buffer, of which the piece is the part from `lead` on.
    Bounced { lead: u64 },
}

/// One I/O. With `Bounced` its offset and length are the piece's, not the blocks'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub piece: Piece,
    pub how: How,
}

impl Piece {
    /// Adds a piece behind this one, if it continues both in memory and in the file.
    pub fn join(&mut self, next: &Piece) -> bool {
        let joins = self.memory + self.len == next.memory && self.offset + self.len == next.offset;
        self.len += if joins { next.len } else { 0 };
        joins
    }

    fn part(&self, from: u64, to: u64) -> Piece {
        Piece { memory: self.memory + from, offset: self.offset + from, len: to - from }
    }
}

impl Geometry {
    /// Whether direct I/O takes it.
    pub fn suits(&self, piece: &Piece) -> bool {
        (piece.offset | piece.len) % self.block == 0 && piece.memory % self.memory == 0
    }

    /// The first and last byte of the blocks around a piece.
    pub fn around(&self, piece: &Piece) -> (u64, u64) {
        let first = piece.offset / self.block * self.block;
        (first, (piece.offset + piece.len).next_multiple_of(self.block))
    }
}

/// The steps of a piece; `direct`: `None` where the file is read and written through the page cache.
pub fn plan(piece: &Piece, write: bool, direct: Option<&Geometry>, steps: &mut Vec<Step>) {
    let mut add = |piece: Piece, how| {
        if piece.len > 0 {
            steps.push(Step { piece, how });
        }
    };
    let Some(geometry) = direct else { return add(*piece, How::Cached) };
    if geometry.suits(piece) {
        return add(*piece, How::Direct);
    }
    let mut begin = 0;
    let mut end = piece.len;
    if write {
        let first = piece.offset.next_multiple_of(geometry.block) - piece.offset;
        let last = (piece.offset + piece.len) / geometry.block * geometry.block;
        if piece.offset + first >= last {
            return add(*piece, How::Cached);
        }
        (begin, end) = (first, last - piece.offset);
        add(piece.part(0, begin), How::Cached);
        add(piece.part(end, piece.len), How::Cached);
        let whole = piece.part(begin, end);
        if geometry.suits(&whole) {
            return add(whole, How::Direct);
        }
    }
    while begin < end {
        let lead = (piece.offset + begin) % geometry.block;
        let to = end.min(begin + BOUNCE - lead);
        add(piece.part(begin, to), How::Bounced { lead });
        begin = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does the steps on arrays, as a disk of whole blocks would.
    fn carry_out(steps: &[Step], write: bool, geometry: &Geometry, memory: &mut [u8], file: &mut [u8]) {
        for Step { piece, how } in steps {
            let (from, to) = match how {
                How::Cached => (piece.offset, piece.offset + piece.len),
                How::Direct => {
                    assert!(geometry.suits(piece), "{piece:?} {geometry:?}");
                    (piece.offset, piece.offset + piece.len)
                }
                How::Bounced { lead } => {
                    let (from, to) = geometry.around(piece);
                    assert!(to - from <= BOUNCE && from + lead == piece.offset, "{piece:?} {geometry:?}");
                    // A write of a block writes all of it.
                    assert!(!write || (from, to) == (piece.offset, piece.offset + piece.len));
                    (from, to)
                }
            };
            assert!(from <= piece.offset && piece.offset + piece.len <= to);
            let (at, len) = (piece.memory as usize, piece.len as usize);
            let place = piece.offset as usize..piece.offset as usize + len;
            match write {
                true => file[place].copy_from_slice(&memory[at..at + len]),
                false => memory[at..at + len].copy_from_slice(&file[place]),
            }
        }
    }

    #[test]
    fn steps_move_each_byte_once_and_no_byte_beside_them() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % below
        };
        const FILE: u64 = 1 << 20;
        for _ in 0..4000 {
            let block = 512 << random(4);
            let geometry = Geometry { block, memory: [4, 512, block][random(3) as usize] };
            let direct = (random(8) > 0).then_some(&geometry);
            let write = random(2) == 0;
            let unit = [1, 512, 4096][random(3) as usize];
            let most = [20, 5000, 300 << 10, 600 << 10][random(4) as usize];
            let len = 1 + random(most);
            let offset = random((FILE - len) / unit + 1) * unit;
            let piece = Piece { memory: random(9000) / unit * unit, offset, len };
            let mut steps = Vec::new();
            plan(&piece, write, direct, &mut steps);
            let mut in_order = steps.clone();
            in_order.sort_by_key(|step| step.piece.offset);
            let mut next = offset;
            for step in &in_order {
                assert_eq!(step.piece.offset, next);
                assert_eq!(step.piece.memory - piece.memory, next - offset);
                next += step.piece.len;
            }
            assert_eq!(next, offset + len);
            let inside = offset as usize..next as usize;
            if random(50) == 0 {
                let mut memory: Vec<u8> = (0..FILE).map(|i| i as u8 ^ 0x55).collect();
                let mut file: Vec<u8> = (0..FILE).map(|i| (i >> 3) as u8).collect();
                let (old_memory, old_file) = (memory.clone(), file.clone());
                carry_out(&steps, write, &geometry, &mut memory, &mut file);
                let at = piece.memory as usize..(piece.memory + len) as usize;
                assert_eq!(memory[at.clone()], file[inside.clone()]);
                let (kept, was) = if write { (&file, &old_file) } else { (&memory, &old_memory) };
                let changed = if write { inside } else { at };
                assert!(
                    kept[..changed.start] == was[..changed.start]
                        && kept[changed.end..] == was[changed.end..]
                );
            }
        }
    }

    #[test]
    fn neighbours_join_only_where_both_sides_continue() {
        let mut piece = Piece { memory: 4096, offset: 0, len: 512 };
        assert!(piece.join(&Piece { memory: 4608, offset: 512, len: 512 }));
        assert!(!piece.join(&Piece { memory: 5120, offset: 8192, len: 512 }));
        assert!(!piece.join(&Piece { memory: 9999, offset: 1024, len: 512 }));
        assert_eq!(piece, Piece { memory: 4096, offset: 0, len: 1024 });
    }
}
