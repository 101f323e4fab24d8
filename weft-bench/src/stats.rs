//! Medians and other quantiles.

use serde::{Deserialize, Serialize};

/// The distribution of a measurement's values.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    /// A tenth of the values is below, and a tenth above.
    pub low: f64,
    pub high: f64,
}

impl Spread {
    pub fn new(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| quantile(&values, part);
        Spread { median: at(0.5), low: at(0.1), high: at(0.9) }
    }
}

pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = part * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_neighbours() {
        let spread = Spread::new(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(spread.median, 2.5);
        assert!((spread.low - 1.3).abs() < 1e-9);
        assert!((spread.high - 3.7).abs() < 1e-9);
        assert_eq!(Spread::new(vec![7.0]).median, 7.0);
        assert!(Spread::new(vec![]).median.is_nan());
    }
}
