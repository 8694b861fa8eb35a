"""OpenAI's requests as inputs of jobs, and the results of jobs as OpenAI's answers.

The API and the batch runner share it. It knows neither HTTP nor Redis.
"""
