"""python benchmarks/conversation_folds.py MODEL [--base-url URL] [--replies]: what folds keep.

Chats in which users say five facts of themselves each, and fifty of small talk in five languages,
made before any prompt was chosen. Each is folded at once by `ConversationMemory` with the model.
Printed are the notes of each, the facts that are in them, and the tokens of the calls; with
`--replies`, also how many of the facts the model replies in another thread. Whether notes say what
no user said is for a reader of the output to see.
"""

from __future__ import annotations

import argparse

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage

from memagent_graph import ConversationMemory
from memagent_graph.models.resolve import resolve_model

CHATS = [
    {
        "My brother Tarek mends clocks in Ghent.": ("What does my brother do?", "clocks"),
        "I moved to Oslo in April for a job at Yara.": ("Where do I work?", "Yara"),
        "I can't eat shellfish, please keep that in mind.": ("What can't I eat?", "shellfish"),
        "My cat is called Pixel; she is six.": ("What is my cat called?", "Pixel"),
        "I play the oboe on Tuesdays.": ("Which instrument do I play?", "oboe"),
    },
    {
        "I'm Noor, I teach chemistry in Leeds.": ("What do I teach?", "chemistry"),
        "My flight to Lima leaves on 3 March.": ("When does my flight to Lima leave?", "3 March"),
        "I prefer short answers.": ("What answers do I prefer?", "short"),
        "My daughter Ines plays the cello.": ("Who plays the cello?", "Ines"),
        "Our garden has two pear trees.": ("How many pear trees do we have?", "two"),
    },
    {
        "Ich heiße Jonas und wohne in Kiel.": ("Wo wohne ich?", "Kiel"),
        "Meine Frau Mira ist Tierärztin.": ("Wie heißt meine Frau?", "Mira"),
        "Ich vertrage keine Milch.": ("Was vertrage ich nicht?", "Milch"),
        "Im Juli fahren wir nach Island.": ("Wohin fahren wir im Juli?", "Island"),
        "Mein Hund Bruno ist neun.": ("Wie alt ist Bruno?", "neun"),
    },
    {
        "我叫李明，住在成都。": ("我住在哪里？", "成都"),
        "我女儿今年七岁，喜欢画画。": ("我女儿喜欢什么？", "画"),
        "我对花生过敏。": ("我对什么过敏？", "花生"),
        "下个月我要去东京出差。": ("我下个月去哪里出差？", "东京"),
        "我养了一只叫小白的狗。": ("我的狗叫什么？", "小白"),
    },
    {
        "Me llamo Carmen y trabajo en un hospital de Vigo.": ("¿Dónde trabajo?", "hospital"),
        "Tengo dos gatos, Luna y Sol.": ("¿Cómo se llaman mis gatos?", "Luna"),
        "No como carne.": ("¿Qué no como?", "carne"),
        "Mi hermano Pablo vive en Quito.": ("¿Dónde vive mi hermano?", "Quito"),
        "El lunes empiezo un curso de japonés.": ("¿Qué curso empiezo el lunes?", "japon"),
    },
]
SMALL_TALK = {
    "en": [
        [
            "Hello, how are you?",
            "Great, thanks! Can you explain what a monad is?",
            "And in one sentence?",
        ],
        ["Good morning!", "What is the capital of Peru?", "Thanks, bye!"],
        ["Translate 'good night' into Finnish.", "And into Basque?"],
        ["My code fails with IndexError, why?", "Here: x = [1]; print(x[1])"],
        ["Hey", "Tell me a joke", "Haha, another one"],
        ["What's the weather like on Mars?", "Wow. How long is a day there?"],
        ["ok", "never mind", "thanks anyway"],
        ["Write a haiku about rain.", "Make it sadder.", "Perfect."],
        ["Is 91 a prime?", "Are you sure?", "Right, 7 times 13."],
        ["Hi there! I'm a bit tired today.", "Suggest a short stretch."],
    ],
    "de": [
        ["Hallo, wie geht's?", "Was ist die Hauptstadt von Peru?"],
        ["Guten Morgen!", "Erkläre mir in einem Satz, was ein Vulkan ist.", "Danke!"],
        ["Übersetze 'thank you' ins Deutsche.", "Und ins Polnische?"],
        ["Erzähl mir einen Witz.", "Der war gut.", "Noch einen?"],
        ["Wie viele Planeten gibt es?", "Seit wann zählt Pluto nicht mehr dazu?"],
        ["Na?", "Alles klar.", "Bis später"],
        ["Schreib ein Gedicht über den Herbst.", "Kürzer bitte."],
        ["Warum ist der Himmel blau?", "Ah, verstehe."],
        ["Ich hab gerade Hunger.", "Was kann man aus drei Eiern machen?"],
        ["Rechne 17 mal 23.", "Danke, das passt."],
    ],
    "fr": [
        ["Bonjour, ça va ?", "Quelle est la capitale du Pérou ?"],
        ["Salut !", "Explique-moi ce qu'est une éclipse.", "Merci beaucoup."],
        ["Traduis 'good night' en français.", "Et en breton ?"],
        ["Raconte-moi une blague.", "Encore une !"],
        ["Combien font 12 fois 12 ?", "D'accord."],
        ["Bonsoir", "Rien de spécial, et toi ?"],
        ["Écris un court poème sur la mer.", "Plus gai, s'il te plaît."],
        ["Pourquoi le ciel est-il bleu ?", "Ah bon, merci."],
        ["Il pleut ici ce matin.", "Une idée de film à voir ?"],
        ["Qui a peint la Joconde ?", "Et où est-elle ?"],
    ],
    "es": [
        ["Hola, ¿qué tal?", "¿Cuál es la capital de Perú?"],
        ["Buenos días", "Explícame qué es un agujero negro.", "Gracias"],
        ["Traduce 'good night' al español.", "¿Y al gallego?"],
        ["Cuéntame un chiste.", "Jajaja, otro."],
        ["¿Cuánto es 15 por 15?", "Vale, gracias."],
        ["Buenas", "Nada, solo saludaba."],
        ["Escribe un poema sobre el fuego.", "Más corto."],
        ["¿Por qué el mar es salado?", "Entiendo."],
        ["Estoy aburrido.", "Recomiéndame un juego de mesa."],
        ["¿Quién escribió el Quijote?", "¿En qué año?"],
    ],
    "zh": [
        ["你好，最近怎么样？", "秘鲁的首都是哪里？"],
        ["早上好！", "请用一句话解释什么是火山。", "谢谢！"],
        ["把“晚安”翻译成英语。", "法语呢？"],
        ["讲个笑话吧。", "哈哈，再来一个。"],
        ["十二乘十二等于多少？", "好的。"],
        ["在吗？", "没事，随便问问。"],
        ["写一首关于月亮的短诗。", "再短一点。"],
        ["天空为什么是蓝色的？", "原来如此。"],
        ["我今天有点累。", "推荐一部电影吧。"],
        ["《红楼梦》是谁写的？", "哪一年？"],
    ],
}


def fold(memory: ConversationMemory, said: list[str], user: str) -> str:
    """Fold a chat, and return the notes on the user in one line."""
    messages = [part for text in said for part in (HumanMessage(text), AIMessage("I see."))]
    memory.save(messages, user=user, thread=user)
    return " / ".join(memory.load(user).splitlines())


def main() -> None:
    """Print what is kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help='a model string, or "extractive"')
    parser.add_argument("--base-url")
    parser.add_argument("--replies", action="store_true", help="ask for the facts, too")
    given = parser.parse_args()
    used = UsageMetadataCallbackHandler()
    model = "extractive"
    if given.model != "extractive":
        model = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
        model.callbacks = [used]
    memory = ConversationMemory(model)
    kept = replied = count = 0
    for number, chat in enumerate(CHATS):
        notes = fold(memory, [*chat], f"chat {number}")
        print(notes, flush=True)
        for question, fact in chat.values():
            count, kept = count + 1, kept + (fact in notes)
            if given.replies and model != "extractive":
                told = memory.prompt(f"chat {number}", about=question)
                reply = model.invoke([*told, HumanMessage(question)], max_tokens=64).text
                replied += fact.casefold() in reply.casefold()
                print(f"  {question} {reply!r}", flush=True)
        print(f"{kept} of {count} facts in notes, {replied} in replies", flush=True)
    for language, talks in SMALL_TALK.items():
        for number, said in enumerate(talks):
            print(language, said, "|", fold(memory, said, f"{language} {number}"), flush=True)
    print(used.usage_metadata)


if __name__ == "__main__":
    main()
