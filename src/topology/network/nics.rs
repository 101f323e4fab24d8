//! The interfaces of this host as NICs: where each leads, and at which addresses.

use super::addresses::{Left, Served};
use super::reach::Reach;
use super::values::{Link, Network};

#[derive(Clone, Debug)]
pub struct Nic {
    pub index: u32,
    pub name: String,
    pub reach: Reach,
    /// Why it leads there, in words that follow its name.
    pub why: String,
    pub served: Served,
}

impl Network {
    /// Each interface once, in the kernel's order.
    pub fn nics(&self) -> Vec<Nic> {
        self.links.iter().map(|link| self.nic_of(link)).collect()
    }

    pub fn nic_of(&self, link: &Link) -> Nic {
        let (reach, mut why) = self.reach(link);
        if reach <= Reach::Tunnel && !link.carrier {
            why += ", now without a carrier";
        }
        // What is down or a port answers at no address.
        let answers = ![Reach::Down, Reach::Port].contains(&reach);
        let served = if answers { self.served(link) } else { Served::default() };
        if let Some(lender) = &served.lender {
            why += &format!(", at the address of {lender}");
        }
        Nic { index: link.index, name: link.name.clone(), reach, why, served }
    }
}

impl Nic {
    /// Where it leads, if it can be a rail by default; else why it cannot.
    pub fn leads(&self) -> Result<Reach, String> {
        match self.reach {
            Reach::Inside | Reach::Port | Reach::Down => Err(self.why.clone()),
            _ if self.served.best.is_empty() => Err(self.has_no_address()),
            reach => Ok(reach),
        }
    }

    fn has_no_address(&self) -> String {
        match &self.served.left[..] {
            [] => format!("{}, without an address", self.why),
            left => {
                let each: Vec<String> =
                    left.iter().map(|Left { ip, why, .. }| format!("{ip} is {why}")).collect();
                format!("{}, but {}", self.why, each.join(", "))
            }
        }
    }

    /// An address of it is tentative, and it has no other.
    pub fn waits(&self) -> bool {
        let soon = self.served.left.iter().any(|left| left.soon);
        self.reach <= Reach::Subnet && self.served.best.is_empty() && soon
    }
}
