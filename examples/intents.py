"""Intent detection: a chat bot learns new intents from one example sentence each, offline.

python examples/intents.py

Intents are pairs such as "cancel a hotel". The bot knows most pairs well and must learn the rest from one sentence
each. Sentences are generated, and embedded by latent semantic analysis, so that nothing is downloaded. With sentences
of your own put your encoder into `make_encoder`: anything from a list of sentences to an array of shape (n, D) will do.
"""

import argparse
import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from cpaan import CPAAN, EmpiricalBayes, FeatureSet, NearestPrototype
from cpaan.augmenters.base import BaseAugmenter
from cpaan.data import draw_shots
from cpaan.evaluation import evaluate_low_shot

Encoder = Callable[[list[str]], NDArray[np.floating]]

ACTIONS = {
    "book": ("book", "reserve", "arrange", "get me"),
    "cancel": ("cancel", "call off", "drop", "get rid of"),
    "change": ("change", "move", "reschedule", "switch"),
    "pay": ("pay for", "settle", "put money down for", "transfer the fee for"),
    "find": ("find", "look for", "search for", "show me"),
    "rate": ("rate", "review", "leave a comment on", "give stars to"),
    "complain": ("complain about", "report a problem with", "say something is wrong with", "be angry about"),
}
OBJECTS = {
    "flight": ("a flight", "a plane ticket", "a seat to Lisbon", "the air journey"),
    "hotel": ("a hotel", "a room", "a place to sleep", "the two nights in Rome"),
    "table": ("a table", "a dinner", "a restaurant", "the meal on Friday"),
    "taxi": ("a taxi", "a cab", "a driver", "the ride to the station"),
    "parcel": ("a parcel", "a delivery", "a package", "the box from the shop"),
    "doctor": ("a doctor", "an appointment", "a check-up", "the visit to the clinic"),
}
OPENERS = ("please", "can you", "I want to", "I would like to", "help me", "is it possible to", "hi there,", "quickly")
CLOSERS = ("", "today", "for me", "as soon as possible", "thanks", "for my mother", "before the weekend", "if you can")


def make_sentences(per_intent: int, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Write sentences for every pair of an action and an object, with the intents that they mean."""
    sentences, intents = [], []
    for action, thing in itertools.product(ACTIONS, OBJECTS):
        for _ in range(per_intent):
            parts = (OPENERS, ACTIONS[action], OBJECTS[thing], CLOSERS)
            sentences.append(" ".join(str(rng.choice(part)) for part in parts).strip())
            intents.append(f"{action} {thing}")
    return sentences, intents


def make_encoder(sentences: list[str], dimension: int = 64) -> Encoder:
    """Learn an embedding from sentences, without their intents."""
    words = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    pipeline = make_pipeline(words, TruncatedSVD(dimension, random_state=0), Normalizer())
    encode: Encoder = pipeline.fit(sentences).transform
    return encode


def bot_with(augmenter: BaseAugmenter | None, base: FeatureSet, shots: FeatureSet) -> NearestPrototype:
    """Train a bot on base intents and on the shots of new ones, filled up by an augmenter where there is one."""
    known = base.concatenate(shots)
    if augmenter is None:
        return NearestPrototype().fit(known.features, known.names)
    augmenter.fit(base.features, base.names)
    X_made, y_made = augmenter.augment(shots.features, shots.names)
    return NearestPrototype().fit(np.concatenate([known.features, X_made]), np.concatenate([known.names, y_made]))


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shots", type=int, default=1, help="sentences of each new intent")
    parser.add_argument("--episodes", type=int, default=400, help="of training for cCov-GAN")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    sentences, intents = make_sentences(60, rng)
    names = list(dict.fromkeys(intents))
    novel = sorted(rng.choice(names, 12, replace=False).tolist())
    encode = make_encoder([s for s, intent in zip(sentences, intents, strict=True) if intent not in novel])
    train, test = draw_shots(FeatureSet(encode(sentences), intents), 40, given.seed)
    base = train.select([name for name in names if name not in novel])
    shots, _ = draw_shots(train.select(novel), given.shots, given.seed)
    print(f"{base.n_classes} known intents of 40 sentences, {len(novel)} new ones of {given.shots}.")
    print("Sentences that are understood, in percent:\n")
    print(f"{'':<16}  new intents alone  all intents  known ones of these  new ones of these")
    augmenters: dict[str, BaseAugmenter | None] = {
        "no augmentation": None,
        "EmpiricalBayes": EmpiricalBayes(random_state=given.seed),
        "CPAAN": CPAAN(episodes=given.episodes, device="cpu", random_state=given.seed),
    }
    bots = {name: bot_with(augmenter, base, shots) for name, augmenter in augmenters.items()}
    for name, bot in bots.items():
        found = evaluate_low_shot(bot, test.features, test.names, novel, k=[1])
        columns = (found.lsl[1], found.glsl[1], found.glsl_base[1], found.glsl_novel[1])
        print(f"{name:<16}  {columns[0]:17.1f}  {columns[1]:11.1f}  {columns[2]:19.1f}  {columns[3]:17.1f}")
    print("\nWhat the bots make of sentences that mean a new intent:")
    for action, thing in (name.split() for name in novel[:3]):
        sentence = f"I would like to {ACTIONS[action][1]} {OBJECTS[thing][1]} today"
        said = {name: str(bot.predict(encode([sentence]))[0]) for name, bot in bots.items()}
        print(f"- {sentence!r} ({action} {thing}): " + ", ".join(f"{name}: {intent}" for name, intent in said.items()))


if __name__ == "__main__":
    main()
