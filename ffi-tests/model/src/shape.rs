//! Pages x layers, fitted into the ranges that are there, and which bytes they name.

use crate::case::{Layout, Order, Shape};

/// One side as `weft_pages_args` has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Laid {
    pub pages: Option<Vec<u32>>,
    pub stride: u64,
    pub offset: u64,
    pub layer_stride: u64,
    pub first_range: u32,
    pub range_step: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    pub page_len: u64,
    pub pages: u64,
    pub layers: u64,
    pub local: Laid,
    pub remote: Laid,
}

/// Bytes that go from a place of one arena to a place of the other.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub local: usize,
    pub remote: usize,
    pub len: usize,
}

pub type Ranges = [(usize, usize)];

/// Makes a shape smaller until both memories have room for it.
pub fn fit(shape: &Shape, local: &Ranges, remote: &Ranges) -> Fitted {
    let (mut page_len, mut pages, mut layers) = (shape.page_len, shape.pages, shape.layers);
    loop {
        let both = [(&shape.local, local), (&shape.remote, remote)]
            .map(|(layout, ranges)| lay(layout, ranges, (page_len, pages, layers)));
        if let [Some(local), Some(remote)] = both {
            return Fitted { page_len, pages, layers, local, remote };
        }
        match (layers, pages) {
            (0..=1, 0..=1) => page_len /= 2,
            (2.., _) if layers >= pages => layers -= layers.div_ceil(2).min(layers - 1),
            _ => pages /= 2,
        }
    }
}

fn lay(layout: &Layout, ranges: &Ranges, (page_len, pages, layers): (u64, u64, u64)) -> Option<Laid> {
    let span = (layers.max(1) as usize - 1) * layout.range_step as usize;
    // Layers begin where there are ranges for all of them, or share one.
    let (starts, range_step) = match ranges.len().checked_sub(span) {
        Some(starts @ 1..) => (starts, layout.range_step),
        _ => (ranges.len(), 0),
    };
    let first_range = layout.first_range as usize % starts;
    let last = first_range + (layers.max(1) as usize - 1) * range_step as usize;
    let room = (first_range..=last)
        .step_by((range_step as usize).max(1))
        .map(|range| ranges.get(range).map(|(_, len)| *len as u64))
        .try_fold(u64::MAX, |least, len| len.map(|len| len.min(least)))?;
    let stride = page_len + layout.gap;
    let layer_len = pages.max(1).saturating_sub(1) * stride + page_len;
    let layer_stride = if range_step > 0 || layers <= 1 { 0 } else { layer_len + layout.layer_gap };
    let left = room.checked_sub(layer_len + layers.max(1).saturating_sub(1) * layer_stride)?;
    Some(Laid {
        pages: list(layout.order, pages),
        stride,
        offset: left * u64::from(layout.place) / 65_535,
        layer_stride,
        first_range: first_range as u32,
        range_step,
    })
}

fn list(order: Order, pages: u64) -> Option<Vec<u32>> {
    let mut list: Vec<u32> = (0..pages as u32).collect();
    match order {
        Order::Absent => return None,
        Order::Ascending => {}
        Order::Descending => list.reverse(),
        Order::Shuffled(seed) => {
            let mut random = Sequence(seed);
            (1..list.len()).for_each(|i| list.swap(i, random.draw() as usize % (i + 1)));
        }
        Order::Repeated(seed) => {
            let mut random = Sequence(seed);
            list.iter_mut().for_each(|page| *page = (random.draw() % pages) as u32);
        }
    }
    Some(list)
}

impl Laid {
    fn place(&self, ranges: &Ranges, page: u64, layer: u64) -> usize {
        let page = self.pages.as_ref().map_or(page, |list| list[page as usize].into());
        let range = u64::from(self.first_range) + layer * u64::from(self.range_step);
        ranges[range as usize].0 + (self.offset + page * self.stride + layer * self.layer_stride) as usize
    }
}

impl Fitted {
    pub fn bytes(&self) -> u64 {
        self.page_len * self.pages * self.layers.max(1)
    }

    /// What it moves, written out.
    pub fn segments(&self, local: &Ranges, remote: &Ranges) -> Vec<Segment> {
        let of_layer = |layer| {
            (0..self.pages).map(move |page| Segment {
                local: self.local.place(local, page, layer),
                remote: self.remote.place(remote, page, layer),
                len: self.page_len as usize,
            })
        };
        (0..self.layers.max(1)).flat_map(of_layer).filter(|segment| segment.len > 0).collect()
    }
}

/// Numbers that follow from a seed.
pub struct Sequence(pub u64);

impl Sequence {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.draw().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}
