"""Trains on graphs with PyTorch Geometric's loaders, as far as they need none of its C++ parts."""

import itertools
import json
import pathlib

import torch
import torch_geometric.nn
from torch_geometric.data import Data, HeteroData, TemporalData
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import (
    CachedLoader,
    DataListLoader,
    DataLoader,
    DenseDataLoader,
    DynamicBatchSampler,
    ImbalancedSampler,
    NodeLoader,
    PrefetchLoader,
    RandomNodeLoader,
    TemporalDataLoader,
    ZipLoader,
)
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.transforms import ToDense
from torch_geometric.utils import k_hop_subgraph


def write_graphs():
    """Thirty circles of three to seven nodes, as the text files of TU datasets."""
    folder = pathlib.Path("data", "CIRCLES", "raw")
    folder.mkdir(parents=True)
    edges, graph_of, node_labels, labels, first = [], [], [], [], 1
    for graph in range(30):
        nodes = 3 + graph % 5
        for node in range(nodes):
            after = (node + 1) % nodes
            edges += [f"{first + node}, {first + after}", f"{first + after}, {first + node}"]
            graph_of.append(graph + 1)
            node_labels.append(node % 3)
        labels.append(graph % 2)
        first += nodes
    columns = {"A": edges, "graph_indicator": graph_of, "node_labels": node_labels, "graph_labels": labels}
    for name, column in columns.items():
        (folder / f"CIRCLES_{name}.txt").write_text("".join(f"{each}\n" for each in column))


def graphs(**options):
    return TUDataset("data", "CIRCLES", **options)


def plain(batch):
    """All that a batch holds, as text."""
    if isinstance(batch, (list, tuple)):
        return [plain(each) for each in batch]
    if isinstance(batch, torch.Tensor):
        return str(batch.tolist())
    if hasattr(batch, "to_dict"):
        batch = batch.to_dict()
    return {str(key): plain(value) for key, value in batch.items()} if isinstance(batch, dict) else str(batch)


class Net(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gin = torch_geometric.nn.GIN(channels, 8, 2, dropout=0.5)
        self.last = torch.nn.Linear(8, 2)

    def forward(self, batch):
        found = self.gin(batch.x, batch.edge_index)
        return self.last(torch_geometric.nn.global_add_pool(found, batch.batch, size=batch.num_graphs))


def trained():
    """The losses of three epochs in order, with dropout, and of a validation after each."""
    torch.manual_seed(2)
    data = graphs()
    training = DataLoader(data[:22], batch_size=5, num_workers=2, persistent_workers=True)
    validation = DataLoader(data[22:], batch_size=8)
    model = Net(data.num_features)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for _ in range(3):
        model.train()
        for batch in training:
            loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item() * batch.num_graphs)
        model.eval()
        with torch.no_grad():
            for batch in validation:
                found.append(torch.nn.functional.cross_entropy(model(batch), batch.y).item())
    return found


def shuffled():
    """Each graph once in each epoch; those of a generator in the same order."""
    data = [Data(x=torch.full((count % 4 + 1, 1), count), number=count) for count in range(20)]
    found = [sorted(batch.number.tolist()) for batch in DataLoader(data, batch_size=20, shuffle=True)]
    ordered = DataLoader(data, batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(3))
    for _ in range(3):
        found.append([batch.number.tolist() for batch in ordered])
    return found


def batches():
    """What batches of several kinds hold, two epochs of each."""
    data = graphs()
    kinds = {
        "followed": DataLoader(data, 7, follow_batch=["x"], exclude_keys=["y"]),
        "lists": DataListLoader(data[:12], batch_size=5, num_workers=1),
        "dense": DenseDataLoader(graphs(transform=ToDense(7)), batch_size=8),
        "dynamic": DataLoader(data, batch_sampler=DynamicBatchSampler(data, max_num=14, mode="edge"), num_workers=2),
        "of so many steps": DataLoader(data, batch_sampler=DynamicBatchSampler(data, max_num=20, num_steps=3)),
        "heterogeneous": DataLoader([heterogeneous(4 + each) for each in range(6)], batch_size=4),
        "tuples": DataLoader([(graph, {"y": graph.y}) for graph in data[:6]], batch_size=4),
    }
    found = {}
    for name, loader in kinds.items():
        found[name] = [[plain(batch) for batch in loader] for _ in range(2)]
        assert found[name][0] == found[name][1]
    return found


def heterogeneous(count):
    data = HeteroData()
    data["user"].x = torch.arange(count * 2.0).view(count, 2)
    data["item"].x = torch.arange(3.0).view(3, 1)
    data["user", "buys", "item"].edge_index = torch.tensor([range(count), [each % 3 for each in range(count)]])
    return data


def ring_of(count):
    edges = torch.tensor([[each, (each + 1) % count] for each in range(count)]).t()
    return Data(x=torch.arange(count * 2.0).view(count, 2), y=torch.arange(count) % 2, edge_index=edges)


class Neighbours(BaseSampler):
    """All nodes within two hops: a sampler as users write it, without the library's C++ parts."""

    def __init__(self, data):
        self.edge_index, self.count = data.edge_index, data.num_nodes

    def sample_from_nodes(self, index, **options):
        node, edges, places, mask = k_hop_subgraph(index.node, 2, self.edge_index, True, self.count)
        order = torch.cat([places, torch.tensor([each for each in range(len(node)) if each not in places])]).long()
        renamed = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        row, col = renamed[edges]
        metadata = (index.input_id, index.time)
        return SamplerOutput(node[order], row, col, mask.nonzero().view(-1), metadata=metadata)

    def sample_from_edges(self, index, **options):
        raise NotImplementedError

    @property
    def edge_permutation(self):
        return None


def of_nodes():
    """Neighbourhoods, filtered by workers or by the loop; two loaders in one; trained, with an epoch that is left."""
    data = ring_of(20)
    sampler = Neighbours(data)
    found = []
    for per_worker in (True, False):
        one = NodeLoader(data, sampler, batch_size=6, filter_per_worker=per_worker, num_workers=2)
        other = NodeLoader(data, sampler, data.y.bool(), batch_size=4, filter_per_worker=per_worker)
        zipped = ZipLoader([one, other], per_worker, batch_size=3)
        for loader in (one, other, zipped, CachedLoader(other), PrefetchLoader(one, torch.device("cpu"))):
            found += [[plain(batch) for batch in loader] for _ in range(2)]
            found.append(len(loader))
    torch.manual_seed(4)
    model = torch_geometric.nn.GraphSAGE(2, 8, 2, 2, dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for stop in (99, 2, 99):
        for batch in itertools.islice(one, stop):
            found.append(trained_on(batch, model, optimizer))
    return found


def trained_on(batch, model, optimizer):
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def of_events():
    """A loader that is its own collate function."""
    events = TemporalData(
        src=torch.arange(20) % 4, dst=4 + torch.arange(20) % 3, t=torch.arange(20), msg=torch.arange(40.0).view(20, 2)
    )
    loader = TemporalDataLoader(events, batch_size=6)
    drawing = TemporalDataLoader(events, batch_size=6, neg_sampling_ratio=2.0)
    found = [[plain(batch) for batch in loader] for _ in range(2)]
    return found + [[len(batch.neg_dst), sorted(batch.keys())] for batch in drawing]


def of_random_nodes():
    """A graph in four random parts: only how large they are, and that they are all of it."""
    data = ring_of(20)
    loader = RandomNodeLoader(data, num_parts=4, shuffle=True, num_workers=2)
    return [
        [[len(batch.x) for batch in loader], sorted(x for batch in loader for x in batch.x[:, 0].tolist())]
        for _ in range(2)
    ]


def by_class():
    """Classes in equal shares, at random."""
    data = graphs()
    loader = DataLoader(data, batch_size=6, sampler=ImbalancedSampler(data))
    return [[batch.num_graphs for batch in loader] for _ in range(2)]


if __name__ == "__main__":
    write_graphs()
    parts = (trained, shuffled, batches, of_nodes, of_events, of_random_nodes, by_class)
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part() for part in parts}))
