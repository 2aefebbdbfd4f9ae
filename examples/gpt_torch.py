"""Train a small GPT in PyTorch, letter by letter, on text that Python itself ships.

The text is what ``help()`` knows of the language (``pydoc_data.topics``, 460,000 letters), so
nothing is downloaded. The rows that letters are read as are also those that the next letter is told
from: one parameter with two uses ("tied"), which is one variable on the servers.

    python examples/gpt_torch.py
    ropewalk local --workers 2 --ps 2 examples/gpt_torch.py

It ends with a loss of 2.6 or less for a letter of text that it has not seen: 4.5 is a guess among
all letters, 3.2 one by how frequent they are. With ``-- --logdir DIR`` it writes its curves for
TensorBoard.
"""

import argparse
from pydoc_data.topics import topics

import torch
from torch.nn import functional

import ropewalk as rw

STEPS = 400  # of all workers together
BATCH, CONTEXT = 32, 64
DIM, HEADS, LAYERS = 64, 4, 2

parser = argparse.ArgumentParser()
parser.add_argument("--logdir")
LOGDIR = parser.parse_args().logdir

text = "\n".join(topics[name] for name in sorted(topics))
letters = sorted({letter for letter in text if letter.isascii()})
number_of = {letter: number for number, letter in enumerate(letters)}
everything = torch.tensor([number_of[letter] for letter in text if letter in number_of])
train, test = everything[:-20_000], everything[-20_000:]


class Block(torch.nn.Module):
    """Attention to the letters before, then a network for each letter."""

    def __init__(self):
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(DIM), torch.nn.LayerNorm(DIM)
        self.look, self.out = torch.nn.Linear(DIM, 3 * DIM), torch.nn.Linear(DIM, DIM)
        self.think = torch.nn.Sequential(
            torch.nn.Linear(DIM, 4 * DIM), torch.nn.GELU(), torch.nn.Linear(4 * DIM, DIM)
        )

    def forward(self, x):
        """Shape (n, length, DIM), in and out."""
        n, length, _ = x.shape
        parts = self.look(self.before(x)).reshape(n, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, DIM))
        return x + self.think(self.between(x))


class GPT(torch.nn.Module):
    """Scores of the next letter, for every letter."""

    def __init__(self):
        super().__init__()
        self.letters = torch.nn.Embedding(len(letters), DIM)
        self.places = torch.nn.Embedding(CONTEXT, DIM)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = torch.nn.LayerNorm(DIM)
        self.head = torch.nn.Linear(DIM, len(letters), bias=False)
        self.head.weight = self.letters.weight  # tied
        for embedding in (self.letters, self.places):
            torch.nn.init.normal_(embedding.weight, std=0.05)

    def forward(self, ids):
        """Of ids (n, length); shape (n, length, letters)."""
        x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.last(self.blocks(x)))


def loss_of(ids):
    logits = module(ids[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def draw(source, count, generator):
    starts = torch.randint(len(source) - CONTEXT - 1, (count,), generator=generator)
    return source[starts[:, None] + torch.arange(CONTEXT + 1)]


@torch.no_grad()
def test_loss(count):
    optimizer.refresh()  # what all workers have learned
    return loss_of(draw(test, count, torch.Generator().manual_seed(1))).item()


@torch.no_grad()
def write(beginning, count):
    generator = torch.Generator().manual_seed(1)
    ids = torch.tensor([[number_of[letter] for letter in beginning]])
    for _ in range(count):
        chances = (module(ids[:, -CONTEXT:])[0, -1] / 0.7).softmax(0)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)[None]], dim=1)
    return "".join(letters[number] for number in ids[0])


torch.manual_seed(0)
module = GPT()
optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.01)

strategy = rw.distribute.ParameterServerStrategy()
optimizer = rw.training.torch.DistributedOptimizer(optimizer, strategy, module=module)
assert "head.weight" not in optimizer.store.names  # it is letters.weight

generator = torch.Generator().manual_seed(strategy.task_index)  # each worker its own text
made = 0  # steps of this worker
writer = rw.summary.create_file_writer(LOGDIR) if LOGDIR else rw.summary.create_noop_writer()
with writer.as_default(step=strategy):
    while strategy.global_step < STEPS:
        optimizer.zero_grad()
        loss = loss_of(draw(train, BATCH, generator))
        loss.backward()
        optimizer.step()
        rw.training.report(loss=loss.item(), total_steps=STEPS)
        rw.summary.scalar("loss", loss)
        made += 1
        if LOGDIR and strategy.is_chief and made % 5 == 0:
            rw.summary.scalar("test_loss", test_loss(64))

if strategy.is_chief:
    print(f"test loss {test_loss(256):.4f}")
    print(write("The ", 120))
