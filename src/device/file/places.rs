//! A list with free places.

pub struct Places<T>(Vec<Option<T>>, Vec<usize>);

impl<T> Default for Places<T> {
    fn default() -> Places<T> {
        Places(Vec::new(), Vec::new())
    }
}

impl<T> Places<T> {
    pub fn add(&mut self, item: T) -> usize {
        let at = self.1.pop().unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[at] = Some(item);
        at
    }

    pub fn get(&mut self, at: usize) -> Option<&mut T> {
        self.0.get_mut(at)?.as_mut()
    }

    pub fn find(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.0.iter_mut().flatten().find(|item| is_it(item))
    }

    pub fn take(&mut self, at: usize) -> Option<T> {
        let item = self.0.get_mut(at)?.take()?;
        self.1.push(at);
        Some(item)
    }

    pub fn each(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// The places, of which some may be free.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that are taken.
    pub fn taken(&self) -> usize {
        self.0.len() - self.1.len()
    }
}
