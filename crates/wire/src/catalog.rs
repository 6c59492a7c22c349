//! Control messages about published files. [`crate::control`] re-exports them.

use crate::codec::{List, Name, Text, wire_struct};
use crate::ids::*;
use crate::limits::*;
use crate::nodes::NodeInfo;
use sha2::{Digest, Sha256};

wire_struct! {
    /// Extent of a published file: a run of its bytes in one region.
    ///
    /// Its handle is bound to the name of the file: [`NamedExtent::bind`] combines it with a hash of the name. The node
    /// knows the handle only as it was before that. So extents that are stored under a wrong name give no right to the
    /// bytes, and the node refuses to read them.
    NamedExtent {
        /// Node that holds the bytes.
        node: NodeId,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
        /// Region of the node.
        region: RegionIndex,
        /// Epoch of the sealed region.
        epoch: Epoch,
        /// Read handle of the region, bound to the name.
        handle: Handle,
        /// First byte in the region.
        region_offset: u64,
        /// Bytes of the run.
        bytes: u64,
    }
}

impl NamedExtent {
    /// Binds the handle to the name of the file. If it is bound to that name already, undoes that.
    pub fn bind(&mut self, name: &Name) {
        let mut first = [0; 16];
        first.copy_from_slice(&Sha256::digest(name.as_bytes())[..16]);
        self.handle.0 ^= u128::from_le_bytes(first);
    }
}

wire_struct! {
    /// Request to give sealed extents (ranges of immutable regions) to a name, in one transaction of the catalog.
    Publish {
        /// Session that sealed the extents.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Name of the file.
        name: Name,
        /// Class of the file.
        class: FileClass,
        /// True to replace a file that has this name.
        replace: bool,
        /// File whose bytes these are, moved to other nodes. It keeps its id, and must still have the name. 0: a new
        /// file.
        moved: FileId,
        /// Extents of the file, in file order.
        extents: List<NamedExtent, NAMED_EXTENTS_MAX>,
    }
}

wire_struct! {
    /// Answer to `Publish`: the name owns the bytes.
    Published {
        /// Id of the file.
        file: FileId,
    }
}

wire_struct! {
    /// Name of a published file that a request is about.
    ByName {
        /// Name of the file.
        name: Name,
    }
}

wire_struct! {
    /// Answer to `OpenName`: the extents of a published file.
    Opened {
        /// Id of the file.
        file: FileId,
        /// Class of the file.
        class: FileClass,
        /// Extents of the file, in file order.
        extents: List<NamedExtent, NAMED_EXTENTS_MAX>,
        /// Nodes that the extents name.
        nodes: List<NodeInfo, NODES_MAX>,
    }
}

wire_struct! {
    /// Request to give a published file another name.
    Rename {
        /// Name that the file has.
        from: Name,
        /// New name, which nobody may have.
        to: Name,
    }
}

wire_struct! {
    /// Request for a page of names, in order.
    ListNames {
        /// Beginning that the names must have; empty: any.
        prefix: Text,
        /// Name after which the page begins; empty: at the first name.
        after: Text,
    }
}

wire_struct! {
    /// Published file in a listing.
    NameInfo {
        /// Name of the file.
        name: Name,
        /// Id of the file.
        file: FileId,
        /// Class of the file.
        class: FileClass,
        /// Length of the file, in bytes.
        bytes: u64,
        /// True if a node that held bytes of the file is gone.
        lost: bool,
        /// Tenant that owns the file.
        tenant: Name,
    }
}

wire_struct! {
    /// Answer to `ListNames`: a page of names.
    Names {
        /// Files of the page, in the order of their names.
        names: List<NameInfo, NAMES_PAGE_MAX>,
        /// True if more names follow.
        more: bool,
    }
}
