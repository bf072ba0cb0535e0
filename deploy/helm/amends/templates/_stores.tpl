{{/* The schema registry, where there is one. */}}
{{- define "amends.registryEnv" -}}
{{- with .Values.schemaRegistry }}
{{- if .url }}
- name: AMENDS_SCHEMA_REGISTRY__URL
  value: {{ .url | quote }}
{{- if .existingSecret }}
- name: AMENDS_SCHEMA_REGISTRY__USERNAME
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .usernameKey }}
- name: AMENDS_SCHEMA_REGISTRY__PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .passwordKey }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The compensators' registry. Without a Redis the read back alone decides. */}}
{{- define "amends.redisEnv" -}}
{{- with .Values.redis }}
- name: AMENDS_COMPENSATOR__REDIS_URL
{{- if .existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .urlKey }}
{{- else }}
  value: {{ required "redis.url or redis.existingSecret is wanted" .url | quote }}
{{- end }}
- name: AMENDS_COMPENSATOR__REDIS_CLUSTER
  value: {{ .cluster | quote }}
- name: AMENDS_COMPENSATOR__REDIS_CHECK
  value: {{ .check | quote }}
{{- end }}
{{- end }}
