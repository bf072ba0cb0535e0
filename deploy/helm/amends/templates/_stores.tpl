{{/* The schema registry, where there is one. */}}
{{- define "amends.registryEnv" -}}
{{- with .Values.schemaRegistry }}
{{- if .url }}
- name: AMENDS_SCHEMA_REGISTRY__URL
  value: {{ .url | quote }}
- name: AMENDS_SCHEMA_REGISTRY__AUTO_REGISTER
  value: {{ .autoRegister | quote }}
{{- with .tls }}
{{- if .existingSecret }}
{{- if ne (empty .certificateKey) (empty .privateKeyKey) }}
{{- fail "schemaRegistry.tls: certificateKey and privateKeyKey, both or neither" }}
{{- end }}
{{- if .caKey }}
- name: AMENDS_SCHEMA_REGISTRY__SSL_CA_LOCATION
  value: /etc/amends/registry-tls/{{ .caKey }}
{{- end }}
{{- if .certificateKey }}
- name: AMENDS_SCHEMA_REGISTRY__SSL_CERTIFICATE_LOCATION
  value: /etc/amends/registry-tls/{{ .certificateKey }}
- name: AMENDS_SCHEMA_REGISTRY__SSL_KEY_LOCATION
  value: /etc/amends/registry-tls/{{ .privateKeyKey }}
{{- end }}
{{- if .keyPasswordKey }}
- name: AMENDS_SCHEMA_REGISTRY__SSL_KEY_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .keyPasswordKey }}
{{- end }}
{{- end }}
{{- end }}
{{- if .existingSecret }}
- name: AMENDS_SCHEMA_REGISTRY__USER
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .userKey }}
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
{{- with .user }}
- name: AMENDS_COMPENSATOR__REDIS_USER
  value: {{ . | quote }}
{{- end }}
{{- if .passwordSecret.name }}
- name: AMENDS_COMPENSATOR__REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .passwordSecret.name }}
      key: {{ .passwordSecret.key }}
{{- end }}
{{- with .sentinel.user }}
- name: AMENDS_COMPENSATOR__REDIS_SENTINEL_USER
  value: {{ . | quote }}
{{- end }}
{{- if .sentinel.passwordSecret.name }}
- name: AMENDS_COMPENSATOR__REDIS_SENTINEL_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .sentinel.passwordSecret.name }}
      key: {{ .sentinel.passwordSecret.key }}
{{- end }}
{{- if .tls.existingSecret }}
{{- if ne (empty .tls.certificateKey) (empty .tls.privateKeyKey) }}
{{- fail "redis.tls: certificateKey and privateKeyKey, both or neither" }}
{{- end }}
- name: AMENDS_COMPENSATOR__REDIS_SSL_CA_LOCATION
  value: /etc/amends/redis-tls/{{ .tls.caKey }}
{{- if .tls.certificateKey }}
- name: AMENDS_COMPENSATOR__REDIS_SSL_CERTIFICATE_LOCATION
  value: /etc/amends/redis-tls/{{ .tls.certificateKey }}
- name: AMENDS_COMPENSATOR__REDIS_SSL_KEY_LOCATION
  value: /etc/amends/redis-tls/{{ .tls.privateKeyKey }}
{{- end }}
{{- end }}
- name: AMENDS_COMPENSATOR__REDIS_CLUSTER
  value: {{ .cluster | quote }}
- name: AMENDS_COMPENSATOR__REDIS_CHECK
  value: {{ .check | quote }}
{{- end }}
{{- end }}
