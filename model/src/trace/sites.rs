//! The sites of a trace by id. The recorder numbers them from 1: they are in a list, where a replay looks one up for
//! each allocation.

use rustc_hash::FxHashMap;
use vramtrace_format::SiteId;

use super::SiteInfo;

/// Ids below this are in the list, whose room is bounded so: a damaged file may name any id.
const LISTED: usize = 1 << 16;

#[derive(Clone, Debug, Default)]
pub(super) struct Sites {
    listed: Vec<Option<SiteInfo>>,
    others: FxHashMap<SiteId, SiteInfo>,
}

impl Sites {
    /// Adds a site, in place of an earlier one with this id.
    pub(super) fn insert(&mut self, id: SiteId, site: SiteInfo) {
        let place = id.0 as usize;
        if place >= LISTED {
            self.others.insert(id, site);
            return;
        }
        if self.listed.len() <= place {
            self.listed.resize(place + 1, None);
        }
        self.listed[place] = Some(site);
    }

    #[inline]
    pub(super) fn get(&self, id: SiteId) -> Option<&SiteInfo> {
        self.listed.get(id.0 as usize).map_or_else(|| self.far(id), |site| site.as_ref())
    }

    #[cold]
    fn far(&self, id: SiteId) -> Option<&SiteInfo> {
        self.others.get(&id)
    }

    /// In no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &SiteInfo> {
        self.listed.iter().flatten().chain(self.others.values())
    }
}

#[cfg(test)]
mod tests {
    use vramtrace_format::{ContextId, DeviceId, PoolId};

    use super::*;

    #[test]
    fn any_id_has_its_last_site() {
        let site = |api| SiteInfo {
            api,
            kind: None,
            device: DeviceId(0),
            context: ContextId(0),
            pool: PoolId(0),
            stream: 0,
        };
        let mut sites = Sites::default();
        let ids = [0, 7, 3, LISTED as u32 - 1, LISTED as u32, u32::MAX, 7];
        for (api, id) in (0..).zip(ids) {
            sites.insert(SiteId(id), site(api));
        }
        let api = |id| sites.get(SiteId(id)).map(|site| site.api);
        assert_eq!([api(0), api(3), api(7)], [Some(0), Some(2), Some(6)]);
        assert_eq!([api(LISTED as u32 - 1), api(LISTED as u32)], [Some(3), Some(4)]);
        assert_eq!([api(u32::MAX), api(1), api(LISTED as u32 + 1)], [Some(5), None, None]);
        assert_eq!(sites.all().count(), 6);
        assert_eq!(sites.listed.len(), LISTED);
    }
}
