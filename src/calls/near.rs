//! The default rails for device memory: those near the device.

use super::Endpoint;
use crate::device::{self, Device};

impl Endpoint {
    /// Each fabric's rails nearest to a device, one bit each; 0: all, where the topology does not
    /// show the device.
    pub(crate) fn rails_near(&self, device: Device) -> u64 {
        let place = device::driver(device).ok().and_then(|driver| driver.place(device));
        let Some(gpu) = self.machine.device(place) else { return 0 };
        let rails = self.rails();
        let mut near = 0;
        for fabric in &self.core.fabrics {
            let of_fabric = || rails.iter().enumerate().filter(|(_, rail)| rail.fabric == *fabric);
            let places: Vec<_> = of_fabric().map(|(_, rail)| rail.pci).collect();
            let which = self.machine.near_device(&places, gpu);
            near |= of_fabric().zip(which).fold(0, |bits, ((i, _), is)| bits | u64::from(is) << i);
        }
        near
    }
}
