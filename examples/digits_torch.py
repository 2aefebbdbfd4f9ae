"""Train a PyTorch module on parameter servers: three lines differ from a program without them.

A small network on scikit-learn's 1,797 scanned digits. Alone, or on a cluster of this machine:

    python examples/digits_torch.py
    ropewalk local --workers 2 --ps 2 examples/digits_torch.py

It ends with 90 % of the test digits or more, which others wrote than the training digits.
"""

import torch
from sklearn.datasets import load_digits

import ropewalk as rw

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
training = torch.utils.data.TensorDataset(images[:1200], labels[:1200])
loader = torch.utils.data.DataLoader(training, batch_size=64, shuffle=True)

strategy = rw.distribute.ParameterServerStrategy()
module, optimizer, loader = rw.training.torch.prepare(strategy, module, optimizer, loader)

for _ in range(20):  # epochs, of which each worker does its part
    for batch, wanted in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(batch), wanted)
        loss.backward()
        optimizer.step()

accuracy = (module(images[1200:]).argmax(1) == labels[1200:]).float().mean()
print(f"test accuracy {accuracy:.4f}")
