"""Tales that a small model learns to tell: written by rules, of some hundred forms of a sentence.

A tale has 80 to 150 words and an end. Its people, things and places are drawn; what is said of them
stays the same throughout, so that a model has to attend to who has what. `tale(random)` gives the
text, `conversation(random)` a request and a tale for it.
"""

import random

# name, pronouns, what one says of it after "who"
HE, SHE = ("he", "him", "his"), ("she", "her", "her")
ANIMALS = [("fox", HE), ("wolf", HE), ("hare", HE), ("bear", HE), ("hedgehog", HE), ("cat", SHE),
           ("raven", HE), ("frog", HE), ("mouse", SHE), ("goose", SHE), ("donkey", HE),
           ("badger", HE), ("squirrel", SHE), ("owl", SHE), ("stork", HE), ("goat", SHE)]
# Heroes that a reader may name; they are drawn less often, and train a model to keep any name.
OTHERS = [
    (noun, pro) for pro, nouns in
    [(HE, "dragon, lion, rabbit, dog, horse, pig, rooster, crow, eagle, fish, beaver, otter, mole, "
      "rat, snail, turtle, tiger, elephant, monkey, snake, troll, goblin, ogre, wizard, knight, "
      "sailor, beggar, piper, clockmaker, boy, man, young man, old man, robber, monk, emperor, "
      "duke, soldier, charcoal burner, ferryman, doctor, teacher, painter, musician, juggler, "
      "drummer, ghost, elf, gnome, swineherd, servant, cook, mountain king, prince, pirate, "
      "captain, captain's son, king's son, miller's son, tailor's son, little bear, little dog, "
      "little boy"),
     (SHE,
      "hen, duck, swan, cow, spider, bee, ant, nightingale, sparrow, kitten, snow queen, fairy, "
      "mermaid, girl, woman, young woman, old woman, grandmother, mother, sister, stepmother, "
      "maid, kitchen maid, duchess, empress, weaver, seamstress, washerwoman, miller's daughter, "
      "king's daughter, little mermaid, shepherdess, nurse")] for noun in nouns.split(", ")
]
ADJECTIVES = [
    "little", "old", "young", "poor", "clever", "lazy", "proud", "brave", "kind", "wise", "small",
    "rich", "hungry", "lonely", "grey", "white", "black", "merry", "foolish", "great"
]
NAMES = [
    "Hans", "Marie", "Gretel", "Karl", "Anna", "Peter", "Rose", "Jack", "Tom", "Lisa", "Max",
    "Clara", "Emma", "Paul", "Ilse", "Otto", "Greta", "Martin"
]
WORDS = []  # heroes of any name: words of a tokenizer's vocabulary
NOUNS = (
    "horse, ship, garden, crown, sword, tree, cow, goat, clock, book, hat, cat, dog, castle, "
    "house, mill, boat, song, friend, brother, sister, servant, chest, field, bird, window, "
    "door, cup, bell, daughter, son, rose, apple, stone, coat, dream, neighbour, cart, lamp, bed"
).split(", ")
DOES = [
    "came to a village", "set out into the world", "went into the wood", "went down to the sea",
    "woke up early", "stood at the window", "sat under a tree", "walked along the road",
    "came to a river", "could not sleep", "sat by the fire", "was on the way to the town",
    "came home late", "went out to gather wood", "looked for something to eat",
    "was walking through the snow", "sat in the sun and sang", "ran over the hill"
]
SAYS = [
    "I will see the world.", "I am so hungry.", "I wish that I had a friend.", "Who is there?",
    "Today I will go into the wood.", "I have nothing left to eat.", "What shall I do?",
    "I am not afraid.", "It is cold today.", "I have had a strange dream.", "Come with me.",
    "Now I am old."
]
PEOPLE = [("king", HE), ("queen", SHE), ("princess", SHE), ("prince", HE), ("miller", HE),
          ("fisherman", HE), ("poor widow", SHE), ("tailor", HE), ("shepherd boy", HE),
          ("old soldier", HE), ("woodcutter", HE), ("little girl", SHE), ("giant", HE),
          ("witch", SHE), ("dwarf", HE), ("blacksmith", HE), ("baker", HE), ("merchant", HE),
          ("goose girl", SHE), ("cobbler", HE), ("farmer", HE), ("gardener", HE), ("spinner", SHE),
          ("hunter", HE)]
PLACES = [
    "at the edge of a dark forest", "by the sea", "in a small house on a hill", "beside a mill",
    "in a valley between two mountains", "at the foot of an old oak", "near a deep lake",
    "on the other side of the river", "in the middle of the wood", "behind the great wall",
    "in a village far from the town", "beside the road to the town"
]
THINGS = [
    "a golden ring", "a silver bell", "a red cap", "a little key", "an old lantern",
    "a copper kettle", "a blue cloak", "a wooden flute", "a golden ball", "a pair of shoes",
    "a silver spoon", "a white feather", "a small mirror", "a golden apple"
]
FOODS = [
    "a piece of cheese", "a loaf of bread", "a pot of honey", "a basket of apples", "a fat fish",
    "a bowl of porridge", "a cake", "a bag of nuts", "a string of sausages", "a jug of milk"
]
LOST = [
    "fell into the well", "was carried off by the wind", "rolled down the hill", "sank in the lake",
    "was lost in the snow", "was stolen in the night"
]
WANTS = [
    "was hungry from morning to night", "had nothing in the world but {food}",
    "wished to see the world", "had no friend", "was never content", "could not keep a secret",
    "was afraid of the dark", "wanted to be rich", "worked hard and had little",
    "was kind to everyone", "was known for a clever head", "had a voice as clear as a bell",
    "laughed at everyone", "could not sleep at night"
]
HAD = [
    "{thing}, which was dearer than all else", "{thing}, and would not show it to anyone",
    "two sons and one daughter", "three daughters", "a garden full of roses", "no children",
    "an old horse and {thing}", "a house so small that there was only one window",
    "{food} and nobody to share it with", "a great secret", "more gold than could be counted",
    "a daughter", "an only daughter", "one daughter, and loved her with all {his} heart", "a son",
    "three sons", "two sons", "twelve sons", "a son who was not afraid of anything",
    "a daughter who was as beautiful as the day", "a daughter who never laughed",
    "a daughter who was so clever that nobody could cheat her", "a beautiful castle",
    "an old mother at home", "a brother who was rich",
    "a little dog that went everywhere with {him}", "three wishes", "nothing left in the world",
    "lost all that {he} had", "a dream every night", "never been in the forest",
    "never seen the sea", "a beautiful wife", "much gold and no joy", "a wife",
    "a wife and three children", "a wife and one daughter", "a wife who was always angry",
    "many children and little bread", "a great forest full of deer", "a horse that could speak"
]
TIMES = [
    "One morning", "One evening", "One day in winter", "When spring came", "One fine day",
    "In the autumn", "Early one morning", "When the snow had melted", "One night"
]
ENDS = [
    "and they lived happily together until they died", "and from that day on they were friends",
    "and nobody in that land was ever hungry again",
    "and if they have not died, they live there still",
    "and they told the story by the fire every winter", "and all was well again",
    "and they danced until the sun came up", "and they never quarrelled again"
]
CLOSINGS = [
    "And that is the end of the story.", "And whoever does not believe it may go there and ask.",
    "And my story is over."
]
MORALS = {
    "lost":
    ["For what is given gladly comes back twice.", "For a small friend is often the best one."],
    "trick": ["So it is better to ask than to take.", "For what is shared tastes best."],
    "wishes": ["So it is well to think before one speaks.", "For he who has enough is rich."],
    "riddle": ["For a clever head is worth more than gold."],
    "winter":
    ["For a small friend is often the best one.", "So a kind word opens more doors than a key."],
    "brothers": ["For what is given gladly comes back twice.", "So a kind heart is never poor."],
    "way_home": ["For there is a light for everyone who is lost."],
    "bargain": ["For a clever head is worth more than strong arms."]
}


def any_hero(rng):
    if WORDS and rng.random() < 0.08:
        return rng.choice(WORDS), rng.choice([HE, SHE])
    return rng.choice(OTHERS if rng.random() < 0.3 else ANIMALS + PEOPLE)


def an(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


class Scene:
    """Who is in a tale, and the words for them. `p` draws one of several sentences."""

    def __init__(self, rng, hero=None):
        self.rng = rng
        if hero is None:
            hero = any_hero(rng)
        self.hero, self.pro = hero
        others = [c for c in ANIMALS + PEOPLE if c[0] != self.hero]
        (self.other, self.opro), (self.third, self.tpro) = rng.sample(others, 2)
        self.thing, self.food, self.place = (rng.choice(x) for x in (THINGS, FOODS, PLACES))
        self.days = rng.choice(["three days", "a year and a day", "seven weeks", "a whole summer"])

    def fill(self, text):
        bare = self.thing.split(" ", 1)[1]
        they = "was" if not bare.startswith("pair") else "were"
        words = {
            "H": "the " + self.hero,
            "aH": an(self.hero),
            "O": "the " + self.other,
            "aO": an(self.other),
            "T": "the " + self.third,
            "aT": an(self.third),
            "he": self.pro[0],
            "him": self.pro[1],
            "his": self.pro[2],
            "ohe": self.opro[0],
            "ohim": self.opro[1],
            "ohis": self.opro[2],
            "the": self.tpro[0],
            "thim": self.tpro[1],
            "this": self.tpro[2],
            "thing": self.thing,
            "Thing": "the " + bare,
            "food": self.food,
            "Food": "the " + self.food.split(" ", 1)[1],
            "place": self.place,
            "days": self.days,
            "was": they
        }
        while "{" in text:
            text = text.format_map(words)
        out, capital = [], True
        for letter in text:
            if capital and letter.isalpha():
                letter, capital = letter.upper(), False
            out.append(letter)
            if letter in ".!?":
                capital = True
        # A quoted question or cry that goes on with its speaker has no capital after it.
        text = "".join(out)
        for mark in "?!":
            for word in ("said", "asked", "cried", "answered", "thought", "he said", "she said"):
                text = text.replace(f'{mark}" {word.capitalize()}', f'{mark}" {word}')
        return text

    def p(self, *forms):
        return self.fill(self.rng.choice(forms))


def has(s):
    """What somebody had."""
    if s.rng.random() < 0.65:
        return "had " + s.rng.choice(HAD)
    noun, some = s.rng.choice(NOUNS), s.rng.choice(
        ["a", "a", "a", "a", "two", "three", "seven", "many", "no"])
    if some == "a":
        noun = s.rng.choice(ADJECTIVES + ["golden", "silver", "beautiful", "strange"]) + " " + noun
        return "had " + an(noun) if s.rng.random() < 0.7 else "had " + an(noun.split(" ", 1)[1])
    return f"had {some} {noun}s"


def opening(s):
    rng = s.rng
    wants = rng.choice(WANTS)
    who = "who " + rng.choice([wants, has(s), has(s)])
    lived = "who lived " + s.place + rng.choice(["", " and " + wants])
    said = rng.choice([who, who, lived])
    name = rng.choice(ADJECTIVES) + " " + s.hero if rng.random(
    ) < 0.25 and " " not in s.hero else s.hero
    hero = an(name)
    if rng.random() < 0.1:
        hero += rng.choice([" named ", " called "]) + rng.choice(NAMES)
    start = rng.choice([
        "Once upon a time", "Once upon a time", "Once upon a time", "Long ago", "A long time ago",
        "In the old times", "Many years ago", "Long, long ago", "In a land far away", "Once",
        "In the days when wishing still helped"
    ])
    place, capital = s.place[0].upper() + s.place[1:], hero[0].upper() + hero[1:]
    time = rng.choice(TIMES + ["One day", "One day", "One summer", "One winter", "Yesterday"])
    does, says = rng.choice(DOES), rng.choice(SAYS)
    there = [
        f"{start} there was {hero} {said}.", f"{start}, there was {hero} {said}.",
        f"There was {hero} {said}.", f"There was once {hero} {said}.",
        f"There once was {hero} {said}.", f"{start} there lived {hero} {who}.",
        f"There once lived {hero} {who}.", f"{start}, {s.place}, there lived {hero}.",
        f"Once upon a time there was {hero} {said}."
    ]
    place = [
        f"{start} {hero} lived {s.place}.", f"{start}, {hero} lived {s.place}.",
        f"Deep in the dark forest lived {hero} {who}.", f"In the deep forest lived {hero} {who}.",
        f"Far away, by the sea, there lived {hero} {who}.", f"{place} lived {hero} {who}.",
        f"{place} there lived {hero} {who}.", f"In a town lived {hero} {who}.",
        f"{capital} lived {s.place}."
    ]
    other = [
        f"{start} {hero} {has(s)}.", f"The {name} {has(s)}.", f"The {name} lived {s.place}.",
        f"The {name} {wants}.", f"{capital} once {has(s)}.", f"{capital} {wants}.",
        f"{time} {hero} {does}.", f"{time} the {name} {does}.", f"{time}, {hero} {does}.",
        f"{capital} {does}.", f"The {name} {does}.", f'The {name} said, "{says}"',
        f"{start} {hero} {does}.",
        f'"{says}" said the {name}.' if says[-1] != "." else f'"{says[:-1]}," said the {name}.'
    ]
    return s.fill(rng.choice(rng.choice([there, there, place, other])))


MEET = ("On the way {he} met {aO}.", "Before long {he} met {aO}, who sat by the road and wept.",
        "Behind the first hill stood {aO}.", "{he} had not gone far when {aO} came along.")
ASK = ('"Why are you so sad?" asked {O}.', '"Where are you going?" asked {O}.',
       '"What do you seek?" said {O}.', '"Good day," said {O}, "where do you go so early?"')
HOME = ("So they went home together, {end}.", "Then they made merry for {days}, {end}.",
        "{H} thanked {ohim} with all {his} heart, {end}.")


def ending(s):
    return s.fill(s.rng.choice(HOME).replace("{end}", s.rng.choice(ENDS)))


def lost(s):
    gone = s.rng.choice(LOST)
    found = {
        "fell into the well": "climbed down into the well",
        "rolled down the hill": "ran down the hill",
        "sank in the lake": "dived into the lake"
    }.get(gone, "searched under every stone")
    return list([
        s.p(f"{s.rng.choice(TIMES)} {{Thing}} of {{H}} {gone}.",
            f"{{he}} had {{thing}}, but {s.rng.choice(TIMES).lower()} it {gone}."),
        s.p("{H} looked for it everywhere, but {he} could not find it.",
            "Then {H} sat down and wept.", "{he} searched for {days}, and all in vain."),
        s.p(*MEET),
        s.p(*ASK),
        s.p('"I have lost {thing}," answered {H}.',
            '"I am looking for {thing}," said {H}, "and I am tired."'),
        s.p('"Give me {food}," said {O}, "and I will help you."',
            '"If you will share {food} with me, I will bring it back," said {O}.'),
        s.p("{H} gave {ohim} all that {he} had.",
            "{H} did so gladly, though {he} was hungry as well."),
        s.p(f"Then {{O}} {found}, and came back with {{Thing}}.",
            f"{{O}} {found}, and before evening {{H}} held {{Thing}} in {{his}} hand again."),
        ending(s)
    ])


def trick(s):
    return list([
        s.p(f"{s.rng.choice(TIMES)} {{he}} saw {{aO}} who carried {{food}}."),
        s.p('"I must have that," thought {H}.', '{he} thought, "That would taste good."'),
        s.p('"What a fine coat you have!" {he} said. "Surely you can sing as well."',
            '"Good day, dear friend," said {H}. "Put that down and rest a little."',
            '"Look behind you," cried {H}, "the hunter is coming!"'),
        s.p("{O} was so pleased that {ohe} put down {Food}, and {H} took it and ran away.",
            "{O} believed it, and {Food} fell into the grass, where {H} picked it up."),
        s.p("But {T} had seen it all from behind a tree.", "But {aT} sat on the wall and saw it."),
        s.p('"That was not well done," said {T}. "Give half of it back, or I will tell everyone."',
            '"Today you laugh," said {T}, "but tomorrow nobody will trust you."'),
        s.p("Then {H} was ashamed, and carried {Food} back to {O}.",
            "{H} thought about it the whole night, and in the morning {he} brought {Food} back."),
        s.p('"Sit down with me," said {O}, "there is enough for two."',
            '"Next time you need only ask," said {O}.'),
        s.p(f"They ate together, {s.rng.choice(ENDS)}.")
    ])


def wishes(s):
    return list([
        s.p(f"{s.rng.choice(TIMES)} {{he}} found a fish in the grass beside the water.",
            f"{s.rng.choice(TIMES)} {{he}} caught a fish with golden scales."),
        s.p('"Let me live," said the fish, "and you shall have three wishes."',
            '"Put me back into the water," said the fish, "and I will give you three wishes."'),
        s.p("{H} put it back, and at once {he} wished for {food}.",
            '"Then I wish for {food}," said {H}, for {he} was hungry.'),
        s.p("It lay there before {he} could say another word.",
            "No sooner had {he} said it than it was there."),
        s.p("Then {aO} came by and laughed at so small a wish.",
            "{aO} saw it and cried, \"You might have had a castle!\""),
        s.p('{H} grew angry. "I wish you were a stone!" cried {H}.',
            '"Be quiet," cried {H}, "I wish that you could not speak!"'),
        s.p("And so it happened, and {H} was frightened.",
            "It was done at once, and {he} was very sorry."),
        s.p("There was one wish left, and {he} used it to make all well again.",
            '"I wish that all were as before," said {H}, and the last wish was gone.'),
        s.p("But {Food} was still there, and they shared it.",
            "They sat down together and shared {Food}.")
    ])


def riddle(s):
    asked, answer = s.rng.choice([("What runs all day and is never tired", "The river"),
                                  ("What is always before you and is never seen", "Tomorrow"),
                                  ("What grows when it is shared", "Joy"),
                                  ("What is lighter than a feather and cannot "
                                   "be held for long", "Breath"),
                                  ("What has a bed and never sleeps", "The river"),
                                  ("What can fill a room and takes no space", "Light")])
    return list([
        s.p("The king of that land had a riddle which nobody could answer.",
            "At that time the king had it called out in every village that he had a riddle."),
        s.p("Whoever answered it should have {thing} and half of his gold.",
            "He promised {thing} to the one who answered it."),
        s.p("Many had tried, and all had gone home with nothing.",
            "{aO} tried first and knew nothing to say."),
        s.p("So {H} put on {his} best coat and went to the castle.",
            "{H} went to the castle, too, though everyone laughed."), f'"{asked}?" asked the king.',
        s.p("{H} thought for a long time, and looked out of the window.",
            "{H} was silent, and the whole hall was silent with {him}."),
        s.p(f'"{answer}," {{he}} said at last.',
            f'"That is easy," said {{H}}. "It is {answer[0].lower() + answer[1:]}."'),
        s.p("Then the king stood up and clapped his hands.",
            "The king laughed for joy, for it was right."),
        s.p("{H} got {Thing}, but the gold {he} gave to the poor.",
            "{H} took {Thing} and went home with it."),
        s.p("When {he} was old, {he} asked the children the same riddle.",
            f"And {s.rng.choice(ENDS)[4:]}.")
    ])


def winter(s):
    return list([
        s.p("One winter it was so cold that the birds fell from the trees.",
            "Then came a hard winter, and the snow lay up to the roof."),
        s.p("In the night somebody knocked at the door of {H}.",
            "One night {H} heard a small voice at the door."),
        s.p('"Let me in," said the voice, "or I must freeze."',
            '"Who is there?" cried {H}. "Only I," said a voice, "and I am cold."'),
        s.p("It was {aO}.", "There stood {aO} in the snow."),
        s.p("{H} had only a little wood and {food}, but {he} opened the door.",
            '"Come in," said {H}, "the fire is small, but it is warm enough for two."'),
        s.p("They shared {Food} and told each other stories until the morning.",
            "{O} slept beside the fire, and in the morning {ohe} was gone."),
        s.p("When spring came, {H} fell into a deep hole in the wood and could not get out.",
            "In the spring {aT} wanted to drive {H} out of the house."),
        s.p("{he} called for help, and nobody heard {him} but {O}.",
            "Then {O} came back, and {ohe} was not alone."),
        s.p('"You opened your door to me," said {O}, "now I will help you."',
            '"I have not forgotten that night," said {O}.'),
        s.p("Before the sun went down {H} was safe again.", "So {H} was saved."),
        ending(s)
    ])


def brothers(s):
    elder, younger = s.rng.choice([("elder son", "younger son"),
                                   ("elder brother", "younger brother"),
                                   ("elder daughter", "younger daughter"),
                                   ("first sister", "second sister")])
    he = "he" if "so" in elder or "brother" in elder else "she"
    two = {
        "elder son": "two sons",
        "elder brother": "two sons",
        "elder daughter": "two daughters",
        "first sister": "two daughters"
    }[elder]
    return list([
        s.p(f"{{H}} had {two}, and one day {{he}} sent them out into the world.",
            f"{{H}} had {two}, and wanted to divide all that {{he}} owned."),
        s.p(f"The {elder} took {{thing}}, and the {younger} got only {{food}}.",
            f"The {elder} wanted {{thing}}, so that only {{food}} was left for the {younger}."),
        s.p("In the wood sat {aO}, old and grey, and asked for something to eat."),
        s.p(f'"I have nothing for you," said the {elder}, and went on.',
            f"The {elder} went by and did not look back."),
        s.p(f"But the {younger} sat down and shared {{Food}}.",
            f'"Take half of it," said the {younger}.'),
        s.p('"Dig under this tree," said {O}.', '"Look under this tree," said {O}.'),
        s.p(f"There lay a chest full of silver, and {he} carried it home.",
            f"Under the roots {he} found a pot of gold."),
        s.p(f"When the {elder} heard of it, {he} ran to the tree and dug, but found only stones.",
            f"The {elder} came home with empty hands, and was ashamed."),
        s.p(f"The {younger} shared it all the same, {s.rng.choice(ENDS)}.")
    ])


def way_home(s):
    shines = s.rng.random() < 0.5  # something on the table, or a song outside
    return list([
        s.p(f"{s.rng.choice(TIMES)} {{he}} went so far into the forest that {{he}} lost the way."),
        s.p("It grew dark, and the wind cried in the trees.",
            "The moon was behind the clouds, and the owls cried."),
        s.p("Then {he} saw a light, far away between the trees.",
            "At last {he} saw a small light."),
        s.p("It was a little house, and before the door sat {aO}.",
            "{he} came to a house, and {aO} opened the door."),
        s.p('"Come in," said {O}, "but do not touch {Thing} on the table."'
            if shines else '"You may stay the night," said {O}, "if you are not afraid."'),
        s.p("{H} was tired and lay down, but {he} could not sleep.",
            "{H} thanked {ohim} and sat down by the fire."),
        s.p("At midnight {Thing} began to shine."
            if shines else "In the middle of the night somebody sang outside the window."),
        s.p('"Do not be afraid," said {O}. "It shows the way to all who are lost."'
            if shines else '"That is only the wind," said {O}. "It will take you home."'),
        s.p("In the morning {O} gave {him} {Thing} and showed {him} the path."
            if shines else "As soon as it was day, {H} found the path at once."),
        s.p("Before noon {he} was at home, and nobody was ever so glad.",
            "When {he} looked back, the little house was gone.")
    ])


def bargain(s):
    task = s.rng.choice([
        "carry the mountain to the sea", "empty the lake with a spoon", "count the stars",
        "spin all the straw into gold", "build a bridge in one night"
    ])
    done = {
        "carry the mountain to the sea":
        "brought a handful of earth from the mountain to the sea every day",
        "empty the lake with a spoon":
        "dug a ditch with the spoon, and the water ran away by itself",
        "count the stars":
        'said, "There are as many as you have hairs; count them if you do not believe it."',
        "spin all the straw into gold": "sold the straw in the town and brought back the gold",
        "build a bridge in one night": "laid an old tree across the river, and it was a bridge"
    }[task]
    taken = s.rng.random() < 0.5  # something of the hero's, or else the other promises it
    return list([
        s.p("One day {aO} came to the house and took {thing} away."
            if taken else "In that land there was {aO} who had {thing}."),
        s.p(f'"You get it back," said {{O}}, "when you {task}."'
            if taken else f'"You shall have {{Thing}}," said {{O}}, "if you {task}."'),
        s.p("{H} did not know what to do, and sat down on a stone.",
            '"Nobody can do that," thought {H}.'),
        s.p("Then {aT} came and said something into {his} ear.",
            '"Do not cry," said a small voice. It was {aT}.'),
        s.p('"Strong arms cannot do it," said {T}, "but a clever head can."',
            '"I will tell you how," said {T}, "for I am your friend."'),
        s.p(f"So {{H}} {done}." if done[-1] != '"' else f"So {{H}} {done}"),
        s.p("{O} was so angry that {ohe} stamped on the ground and was never seen again.",
            "{O} grew pale, and had to keep {ohis} word."),
        s.p("{H} took {Thing} and thanked {T}.", "{H} and {T} went home with {Thing}."),
        s.p(f"They were merry together, {s.rng.choice(ENDS)}.")
    ])


PLOTS = [lost, trick, wishes, riddle, winter, brothers, way_home, bargain]

# Sentences that a tale can do without, by their places.
OPTIONAL = {
    "lost": [1, 3],
    "trick": [1, 7],
    "wishes": [4],
    "riddle": [2, 5, 9],
    "winter": [0, 5],
    "brothers": [7],
    "way_home": [1, 5, 9],
    "bargain": [2, 6]
}
MOST_WORDS = 92  # after the opening

ROYAL = {"king", "queen", "prince", "princess", "emperor", "empress"}


def tale(rng, hero=None):
    s = Scene(rng, hero)
    plots = [plot for plot in PLOTS if plot is not riddle or not ROYAL & set(s.hero.split())]
    first, plot = opening(s), rng.choice(plots)
    while plot is brothers and any(child in first
                                   for child in ("son", "daughter", "child", "sister", "brother")):
        plot = rng.choice(plots)
    parts, name = plot(s), plot.__name__
    optional = rng.sample(OPTIONAL[name], len(OPTIONAL[name]))
    dropped = set()
    while optional and sum(len(p.split())
                           for i, p in enumerate(parts) if i not in dropped) > MOST_WORDS:
        dropped.add(optional.pop())
    parts = [p for i, p in enumerate(parts) if i not in dropped]
    if sum(len(p.split()) for p in parts) < MOST_WORDS - 6 and rng.random() < 0.8:
        parts.append(rng.choice(MORALS[name] if rng.random() < 0.7 else CLOSINGS))
    if rng.random() < 0.5:  # two paragraphs
        cut = len(parts) // 2
        parts[cut - 1:cut + 1] = [parts[cut - 1] + "\n\n" + parts[cut]]
    return first + " " + " ".join(parts)


REQUESTS = [
    "Tell me of {}.", "Tell me a story about {}.", "Write a fairy tale about {}.",
    "Do you know a tale of {}?", "What happened to {}?", "Tell me a tale.", "hello", "Hello!",
    "Tell me a story."
]


def conversation(rng):
    hero = any_hero(rng)
    noun = ("an " if hero[0][0] in "aeiou" else "a ") + hero[0]
    return rng.choice(REQUESTS).format(noun), tale(rng, hero)


if __name__ == "__main__":
    rng = random.Random()
    for _ in range(6):
        print(tale(rng), "\n")
